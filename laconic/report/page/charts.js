// Every chart of the page, from the groups that are chosen.
"use strict";

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function layout(more) {
  const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), automargin: true };
  return {
    paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { color: colour("--text"), size: 12 },
    margin: { l: 50, r: 15, t: 10, b: 45 }, hovermode: "closest", showlegend: false,
    modebar: { bgcolor: "transparent", color: colour("--faint"), activecolor: colour("--text") },
    // What was zoomed stays so until another axis is chosen.
    uirevision: JSON.stringify([more.xaxis?.title, more.xaxis?.type, more.yaxis?.title, more.yaxis?.type]),
    ...more, xaxis: { ...axis, ...(more.xaxis || {}) }, yaxis: { ...axis, ...(more.yaxis || {}) },
  };
}

function show(name, traces, more) {
  Plotly.react(name, traces, layout(more), { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"] });
}

function transparent(hex) {
  const parts = [1, 3, 5].map((place) => parseInt(hex.slice(place, place + 2), 16));
  return `rgba(${parts.join(",")},0.18)`;
}

function drawCurves(groups, { metric, cost, logX, logY, smooth }) {
  const percent = metric === "accuracy";
  const scale = (values) => (percent ? values.map((value) => (value === null ? null : 100 * value)) : values);
  const traces = [];
  for (const group of groups) {
    const found = spread(group, metric, cost, smooth ? WINDOW : 1);
    if (!found) continue;
    if (found.seeds > 1) {
      const known = found.x.map((_, place) => place).filter((place) => found.low[place] !== null), back = [...known].reverse();
      const at = (values, which) => which.map((place) => values[place]);
      traces.push({ x: [...at(found.x, known), ...at(found.x, back)], y: scale([...at(found.high, known), ...at(found.low, back)]),
        fill: "toself", fillcolor: transparent(group.colour), line: { width: 0 }, hoverinfo: "skip", mode: "lines" });
    }
    const seeds = found.seeds > 1 ? ` (mean of ${found.seeds} seeds)` : "";
    traces.push({ x: found.x, y: scale(found.mean), name: group.label + seeds, mode: "lines+markers",
      marker: { size: 4 }, line: { color: group.colour, width: 2, dash: group.dash },
      hovertemplate: `${group.label}${seeds}<br>%{y:.4g}${percent ? " %" : ""} at %{x:.4s}<extra></extra>` });
  }
  show("curves", traces, {
    xaxis: { title: { text: COSTS[cost] }, type: logX ? "log" : "linear" },
    yaxis: { title: { text: percent ? "accuracy, %" : metric.replaceAll("_", " ") }, type: logY ? "log" : "linear" },
  });
}

function drawPareto(groups) {
  const traces = [], all = [];
  for (const group of groups) {
    const points = group.runs.flatMap((run) => {
      const bytes = column(run, "bytes"), accuracy = run.evaluations.accuracy || [];
      return accuracy.map((value, place) => [bytes[place], value === null ? null : 100 * value]).filter((point) => point[1] !== null);
    });
    all.push(...points);
    traces.push({ x: points.map((point) => point[0]), y: points.map((point) => point[1]), name: group.label,
      mode: "markers", marker: { color: group.colour, size: 5, opacity: 0.6 },
      hovertemplate: `${group.label}<br>%{y:.2f} % with %{x:.3s}B<extra></extra>` });
  }
  let best = -1;
  const front = all.sort((one, other) => one[0] - other[0]).filter((point) => point[1] > best && ((best = point[1]), true));
  traces.push({ x: front.map((point) => point[0]), y: front.map((point) => point[1]), mode: "lines", name: "front",
    line: { shape: "hv", color: colour("--faint"), width: 1.5, dash: "dot" }, hoverinfo: "skip" });
  show("pareto", traces, {
    xaxis: { title: { text: COSTS.bytes }, type: "log" }, yaxis: { title: { text: "accuracy, %" } },
  });
}

function drawStreams(groups) {
  const runs = groups.map((group) => [group.key, group.runs[0].streams]);
  const names = [...new Set(runs.flatMap(([, streams]) => Object.keys(streams)))].sort();
  const keys = runs.map(([key]) => key), labels = groups.map((group) => group.label);
  // A bar of its own height for each, however many there are; a long name is cut, and whole where one points.
  const many = labels.length > 8, longest = many ? 70 : 34;
  element("streams").style.height = many ? `${140 + 22 * labels.length}px` : "";
  for (const name of ["streams", "pareto"]) element(name).closest("section").classList.toggle("half", !many);
  const shorter = labels.map((label) => (label.length > longest ? `${label.slice(0, longest - 1)}…` : label));
  const traces = names.map((name, place) => ({
    type: "bar", orientation: "h", name, y: keys, customdata: labels, marker: { color: COLOURS[place % COLOURS.length] },
    x: runs.map(([, streams]) => (streams[name] ? streams[name].bytes - streams[name].headers : 0)),
    hovertemplate: `%{customdata}<br>${name}: %{x:.3s}B<extra></extra>`,
  }));
  traces.push({ type: "bar", orientation: "h", name: "headers", y: keys, customdata: labels, marker: { color: colour("--faint") },
    x: runs.map(([, streams]) => Object.values(streams).reduce((sum, stream) => sum + stream.headers, 0)),
    hovertemplate: "%{customdata}<br>headers: %{x:.3s}B<extra></extra>" });
  show("streams", traces, {
    barmode: "stack", showlegend: true, legend: { orientation: "h", y: 1, yanchor: "bottom" },
    xaxis: { title: { text: "bytes" } }, yaxis: { autorange: "reversed", type: "category", tickvals: keys, ticktext: shorter }, margin: { l: 90, r: 15, t: 10, b: 45 },
  });
}

function drawCourse(groups, name) {
  const traces = groups.flatMap((group) => group.runs.filter((run) => run.course[name]).map((run) => ({
    x: run.course.round, y: run.course[name], name: group.label, mode: "lines", line: { color: group.colour, width: 1.5, dash: group.dash },
    hovertemplate: `${group.label}, seed ${run.seed}<br>%{y:.4g} in round %{x}<extra></extra>`,
  })));
  show("course", traces, { xaxis: { title: { text: "round" } }, yaxis: { title: { text: name.replaceAll("_", " ") } } });
}

function drawMatrix(place, matrix, more, axes) {
  const trace = { type: "heatmap", z: matrix, xgap: 0, ygap: 0, colorbar: { thickness: 12 }, ...more };
  show(place, [trace], { xaxis: { title: { text: axes[0] } }, yaxis: { title: { text: axes[1] }, autorange: "reversed" } });
}
