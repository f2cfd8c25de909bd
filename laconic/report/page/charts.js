// The charts of the page.
"use strict";

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function layout(more) {
  const axis = { gridcolor: color("--line"), zerolinecolor: color("--line"), automargin: true };
  return {
    paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { color: color("--text"), size: 12 },
    margin: { l: 50, r: 15, t: 10, b: 45 }, hovermode: "closest", showlegend: false,
    modebar: { bgcolor: "transparent", color: color("--faint"), activecolor: color("--text") },
    // Keep the zoom until another axis is selected.
    uirevision: JSON.stringify([more.xaxis?.title, more.xaxis?.type, more.yaxis?.title, more.yaxis?.type]),
    ...more, xaxis: { ...axis, ...(more.xaxis || {}) }, yaxis: { ...axis, ...(more.yaxis || {}) },
  };
}

// On touch screens dragging scrolls the page, and the chart buttons, which would cover the chart, are hidden.
const TOUCH = matchMedia("(hover: none)").matches;

function show(name, traces, more) {
  // The data must not leave the page: remove the buttons that send it to plotly's server.
  const removed = ["select2d", "lasso2d", "sendDataToCloud", "sendChartToCloud"];
  const buttons = { displaylogo: false, plotlyServerURL: "", displayModeBar: TOUCH ? false : "hover", modeBarButtonsToRemove: removed };
  const drag = TOUCH ? { dragmode: false } : {};
  Plotly.react(name, traces, layout({ ...drag, ...more }), { responsive: true, ...buttons });
}

// Plotly reads tags, entities and %{…} in texts. Names come from files and are shown as they are.
function literal(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll("%", "&#37;");
}

function transparent(hex) {
  const parts = [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
  return `rgba(${parts.join(",")},0.18)`;
}

function drawCurves(groups, { metric, cost, logX, logY, smooth }) {
  const percent = metric === "accuracy";
  const scale = (values) => (percent ? values.map((value) => (value === null ? null : 100 * value)) : values);
  const traces = [];
  for (const group of groups) {
    const width = smooth ? WINDOW : 1, band = spread(group, metric, cost, width);
    if (!band) continue;
    if (band.seeds > 1) {
      const known = band.x.map((_, index) => index).filter((index) => band.low[index] !== null), back = [...known].reverse();
      const at = (values, indices) => indices.map((index) => values[index]);
      traces.push({ x: [...at(band.x, known), ...at(band.x, back)], y: scale([...at(band.high, known), ...at(band.low, back)]),
        fill: "toself", fillcolor: transparent(group.color), line: { width: 0 }, hoverinfo: "skip", mode: "lines" });
    }
    const seeds = meanOf(band.seeds);
    traces.push({ x: band.x, y: scale(band.mean), name: literal(group.label) + seeds, mode: "lines+markers",
      marker: { size: 4 }, line: { color: group.color, width: 2, dash: group.dash },
      hovertemplate: `${literal(group.label)}${seeds}<br>%{y:.4g}${percent ? " %" : ""} at %{x:.4s}<extra></extra>` });
    const ends = group.runs.filter((run) => run.diverged).map((run) => lastPoint(run, metric, cost, width)).filter(Boolean);
    if (ends.length) {
      traces.push({ x: ends.map((end) => end.x), y: scale(ends.map((end) => end.y)), customdata: ends.map((end) => end.text), name: `${literal(group.label)}, diverged`,
        mode: "markers", marker: { symbol: "x", size: 11, color: group.color }, hovertemplate: `${literal(group.label)}<br>%{customdata}<extra></extra>` });
    }
  }
  show("curves", traces, {
    xaxis: { title: { text: COSTS[cost] }, type: logX ? "log" : "linear" },
    yaxis: { title: { text: percent ? "accuracy, %" : literal(metric.replaceAll("_", " ")) }, type: logY ? "log" : "linear" },
  });
}

function drawPareto(groups) {
  const traces = [], all = [];
  for (const group of groups) {
    const points = group.runs.flatMap((run) => {
      const bytes = column(run, "bytes"), accuracy = run.evaluations.accuracy || [];
      return accuracy.map((value, index) => [bytes[index], value === null ? null : 100 * value]).filter((point) => point[1] !== null);
    });
    all.push(...points);
    traces.push({ x: points.map((point) => point[0]), y: points.map((point) => point[1]), name: literal(group.label),
      mode: "markers", marker: { color: group.color, size: 5, opacity: 0.6 },
      hovertemplate: `${literal(group.label)}<br>%{y:.2f} % with %{x:.3s}B<extra></extra>` });
  }
  let best = -1;
  const front = all.sort((a, b) => a[0] - b[0]).filter((point) => point[1] > best && ((best = point[1]), true));
  traces.push({ x: front.map((point) => point[0]), y: front.map((point) => point[1]), mode: "lines", name: "front",
    line: { shape: "hv", color: color("--faint"), width: 1.5, dash: "dot" }, hoverinfo: "skip" });
  show("pareto", traces, {
    xaxis: { title: { text: COSTS.bytes }, type: "log" }, yaxis: { title: { text: "accuracy, %" } },
  });
}

// Wrap text into lines of at most `letters` characters, at word boundaries where possible.
function wrapped(text, letters) {
  const lines = [""];
  for (const word of text.match(new RegExp(`\\S{1,${letters}}\\s*`, "g")) || []) {
    if ((lines.at(-1) + word).trimEnd().length > letters) lines.push("");
    lines[lines.length - 1] += word;
  }
  return lines.map((line) => line.trimEnd());
}

const BAR = 18, LINE = 15, GAP = 10;

// Bytes by stream, headers separate: as bars, as shares, or as dots, since bar lengths mean nothing on a logarithmic axis.
function drawStreams(groups, scale) {
  const means = groups.map(streamsOf), sums = means.map((mean) => mean.bytes), log = scale === "log", share = scale === "share";
  const titles = groups.map((group, at) => group.label + meanOf(means[at].seeds));
  const names = [...new Set(sums.flatMap((sizes) => Object.keys(sizes)))];
  names.sort((a, b) => (a === HEADERS) - (b === HEADERS) || a.localeCompare(b));
  const half = groups.length <= 8;
  for (const name of ["streams", "pareto"]) element(name).closest("section").classList.toggle("half", half);
  // Labels are above the bars, so that both have the full width. Positions are pixels from the top.
  const chart = element("streams"), letters = Math.max(20, Math.floor((chart.clientWidth - 30) / 6.8));
  const labels = titles.map((title) => wrapped(title, letters));
  let height = 0;
  const tops = labels.map((label) => (height += GAP + LINE * label.length + BAR) - BAR);
  chart.style.height = `${Math.max(200, height + 110 + (chart.clientWidth < 500 ? 10 * names.length : 0))}px`;
  // Charts side by side have the same height.
  element("pareto").style.height = half && innerWidth > 800 ? chart.style.height : "";
  const totals = sums.map((sizes) => Object.values(sizes).reduce((sum, bytes) => sum + bytes, 0) || 1);
  const traces = names.map((name, order) => {
    const bytes = sums.map((sizes) => sizes[name] ?? 0), mark = { color: name === HEADERS ? color("--faint") : COLORS[order % COLORS.length] };
    const texts = titles.map((title, at) => `${literal(title)}<br>${literal(name)}: ${size(bytes[at])}, ${number(100 * bytes[at] / totals[at], 2)} % of ${size(totals[at])}`);
    const x = bytes.map((count, at) => (share ? 100 * count / totals[at] : log && !count ? null : count));
    const kind = log ? { mode: "markers", marker: { ...mark, size: 8 } } : { type: "bar", orientation: "h", marker: mark, width: BAR };
    // Offset the dots vertically, so that equal values do not hide each other.
    const y = tops.map((top) => top + (log ? BAR * (order + 0.5) / names.length : BAR / 2));
    return { ...kind, name: literal(name), x, y, customdata: texts, hovertemplate: "%{customdata}<extra></extra>" };
  });
  show("streams", traces, {
    barmode: "stack", showlegend: true, legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0, traceorder: "normal" },
    xaxis: { title: { text: share ? "% of its bytes" : "bytes" }, type: log ? "log" : "linear" },
    yaxis: { range: [height + GAP / 2, 0], visible: false, fixedrange: true },
    annotations: labels.map((label, at) => ({ text: label.map(literal).join("<br>"), x: 0, xref: "paper", xanchor: "left", align: "left",
      y: tops[at], yanchor: "bottom", borderpad: 0, showarrow: false })),
    margin: { l: 12, r: 15, t: 10, b: 45 },
  });
}

function drawCourse(groups, name, log) {
  const traces = groups.flatMap((group) => group.runs.filter((run) => run.course[name]).map((run) => ({
    x: run.course.round, y: run.course[name], name: literal(group.label), mode: "lines", line: { color: group.color, width: 1.5, dash: group.dash },
    hovertemplate: `${literal(group.label)}, seed ${run.seed}<br>%{y:.4g} in round %{x}<extra></extra>`,
  })));
  show("course", traces, { xaxis: { title: { text: "round" } }, yaxis: { title: { text: literal(name.replaceAll("_", " ")) }, type: log ? "log" : "linear" } });
}

// The distribution over clients: the sorted values, from the lowest to the highest.
function drawClients(groups, name) {
  const traces = groups.flatMap((group) => group.runs.filter((run) => run.client_metrics?.values[name]).map((run) => {
    const { clients, values: all } = run.client_metrics;
    const values = all[name].map((value, at) => ({ value, client: clients[at] })).filter(({ value }) => value !== null).sort((a, b) => a.value - b.value);
    return { x: values.map((_, at) => (100 * (at + 1)) / values.length), y: values.map(({ value }) => value), name: literal(group.label), mode: "lines",
      text: values.map(({ client }) => literal(`client ${client}`)),
      line: { color: group.color, width: 1.5, dash: group.dash, shape: "vh" },
      hovertemplate: `${literal(group.label)}, seed ${run.seed}<br>%{x:.3g} % of ${values.length} clients: at most %{y:.4g}<br>%{text}<extra></extra>` };
  }));
  show("clients", traces, { xaxis: { title: { text: "clients, %" } }, yaxis: { title: { text: literal(name.replaceAll("_", " ")) } } });
}

function drawMatrix(name, matrix, more, axes) {
  const trace = { type: "heatmap", z: matrix, xgap: 0, ygap: 0, colorbar: { thickness: 12 }, ...more };
  // Ticks at whole numbers only: clients and classes are integers.
  const ticks = (count) => (count <= 20 ? { dtick: 1 } : {});
  show(name, [trace], { xaxis: { title: { text: axes[0] }, ...ticks(matrix[0].length) },
    yaxis: { title: { text: axes[1] }, autorange: "reversed", ...ticks(matrix.length) } });
}
