// The charts of the page.
"use strict";

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function layout(more) {
  const axis = { gridcolor: color("--line"), zerolinecolor: color("--line"), automargin: true, exponentformat: "SI", minexponent: 2 };
  return {
    paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { color: color("--text"), size: 12 },
    margin: { l: 50, r: 15, t: 10, b: 45 }, hovermode: "closest", showlegend: false,
    modebar: { bgcolor: "transparent", color: color("--faint"), activecolor: color("--text") },
    // Keep the zoom until another axis is selected.
    uirevision: JSON.stringify([more.xaxis?.title, more.xaxis?.type, more.yaxis?.title, more.yaxis?.type]),
    ...more, xaxis: { ...axis, ...(more.xaxis || {}) }, yaxis: { ...axis, ...(more.yaxis || {}) },
  };
}

// A tick of a logarithmic axis: 20k, 5M, 0.02.
function tick(value) {
  const [unit, prefix] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([least]) => value >= 0.999 * least) ?? [1, ""];
  return Number((value / unit).toPrecision(1)) + prefix;
}

// Ticks for a range of exponents of ten, of which `room` fit: 10k, 20k, 50k, 100k; or powers of ten; or every second or
// third power. Within a decade Plotly's own ticks are even; beyond it labels 2 and 5 in a smaller font, or leaves them out.
function logTicks(low, high, room) {
  if (high - low < 1) return { tickmode: "auto", tickvals: null, ticktext: null };
  const steps = 3 * (high - low) <= room ? [1, 2, 5] : [1], stride = Math.ceil((high - low) / room), tickvals = [];
  for (let power = stride * Math.floor(low / stride); power <= high; power += stride) tickvals.push(...steps.map((step) => Number(`${step}e${power}`)));
  return { tickmode: "array", tickvals, ticktext: tickvals.map(tick) };
}

// Ticks of the logarithmic axes of a chart, for the range that it shows.
function fitTicks(chart) {
  const changes = {};
  for (const [name, distance] of [["xaxis", 46], ["yaxis", 28]]) {
    const axis = chart._fullLayout[name];
    if (axis?.type !== "log") continue;
    const [low, high] = axis.range, ticks = logTicks(low, high, axis._length / distance);
    for (const [key, value] of Object.entries(ticks)) changes[`${name}.${key}`] = value;
  }
  if (Object.keys(changes).length) Plotly.relayout(chart, changes);
}

const isPrinted = () => document.documentElement.classList.contains("printing");

// On touch screens dragging scrolls the page, and the chart buttons, which would cover the chart, are hidden.
const TOUCH = matchMedia("(hover: none)").matches;

// `label` describes the chart for screen readers, in place of its ticks. The tables of the page have its numbers.
function show(name, traces, more, label) {
  const chart = element(name);
  chart.setAttribute("role", "figure");
  chart.setAttribute("aria-label", label);
  // The data must not leave the page: remove the buttons that send it to plotly's server.
  const removed = ["select2d", "lasso2d", "sendDataToCloud", "sendChartToCloud"];
  const buttons = { displaylogo: false, plotlyServerURL: "", displayModeBar: TOUCH ? false : "hover", modeBarButtonsToRemove: removed };
  const drag = TOUCH ? { dragmode: false } : {};
  // Plotly measures a chart when it is drawn first, but a sheet of paper has another width.
  const fixed = isPrinted() ? { width: chart.clientWidth, height: chart.clientHeight } : { autosize: true };
  Plotly.react(chart, traces, layout({ ...drag, ...fixed, ...more }), { responsive: true, ...buttons });
  fitTicks(chart);
  if (!chart.dataset.fitted) chart.on("plotly_relayout", (change) => { if (Object.keys(change).some((key) => /axis\.(range|autorange)|autosize|width/.test(key))) fitTicks(chart); });
  chart.dataset.fitted = "yes";
  for (const drawing of chart.querySelectorAll(".main-svg")) drawing.setAttribute("aria-hidden", "true");
}

// Plotly reads tags, entities and %{…} in texts. Names come from files and are shown as they are.
function literal(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll("%", "&#37;");
}

function transparent(hex) {
  const parts = [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
  return `rgba(${parts.join(",")},0.18)`;
}

// Accuracies are shown in percent.
const inPercent = (metric) => metric.endsWith("accuracy");

// A horizontal line at the target, if the chart has its metric.
function targetLine(goal, metric) {
  if (goal.value === null || metric !== goal.metric) return {};
  const target = goal.value * (inPercent(metric) ? 100 / goal.factor : 1);
  const line = { color: color("--faint"), width: 1.5, dash: "dash" };
  const text = { text: literal(`target ${goal.text}`), font: { color: color("--faint"), size: 11 } };
  return { shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: target, y1: target, line }],
    annotations: [{ ...text, xref: "paper", x: 0, xanchor: "left", xshift: 4, y: target, yanchor: "bottom", showarrow: false }] };
}

// The mean of a group as a line, and a band from the lowest to the highest seed.
function bandTraces(group, band, scale, hover) {
  const traces = [];
  if (band.seeds > 1) {
    const known = band.x.map((_, index) => index).filter((index) => band.low[index] !== null), back = [...known].reverse();
    const at = (values, indices) => indices.map((index) => values[index]);
    traces.push({ x: [...at(band.x, known), ...at(band.x, back)], y: scale([...at(band.high, known), ...at(band.low, back)]),
      fill: "toself", fillcolor: transparent(group.color), line: { width: 0 }, hoverinfo: "skip", mode: "lines" });
  }
  const name = literal(group.label) + meanOf(band.seeds);
  traces.push({ x: band.x, y: scale(band.mean), name, mode: band.x.length > 60 ? "lines" : "lines+markers", marker: { size: 4 },
    line: { color: group.color, width: 2, dash: group.dash }, hovertemplate: `${name}<br>${hover}<extra></extra>` });
  return traces;
}

// Marks where runs of a group diverged, or collapsed.
function marks(group, kind, symbol, points, scale) {
  if (!points.length) return [];
  const look = { mode: "markers", marker: { symbol, size: 12, color: group.color, line: { color: color("--ground"), width: 1 } } };
  return [{ ...look, x: points.map((point) => point.x), y: scale(points.map((point) => point.y)), customdata: points.map((point) => point.text),
    name: `${literal(group.label)}, ${kind}`, hovertemplate: `${literal(group.label)}<br>%{customdata}<extra></extra>` }];
}

function drawCurves(groups, { metric, cost, logX, logY, smooth, goal }) {
  const percent = inPercent(metric), width = smooth ? WINDOW : 1, traces = [];
  const scale = (values) => (percent ? values.map((value) => (value === null ? null : 100 * value)) : values);
  for (const group of groups) {
    const band = spread(group, width, evaluated(metric, cost));
    if (!band) continue;
    traces.push(...bandTraces(group, band, scale, `%{y:.4g}${percent ? " %" : ""} at %{x:.4s}`));
    const ends = (runs, text, round) => runs.map((run) => {
      const point = lastPoint(run, metric, cost, width, round(run));
      return point && { ...point, text: literal(text(run)) };
    }).filter(Boolean);
    traces.push(...marks(group, "diverged", "x", ends(group.runs.filter((run) => run.diverged), flaw, () => Infinity), scale));
    const fallen = group.runs.filter((run) => run.collapsed);
    traces.push(...marks(group, "collapsed", "triangle-down", ends(fallen, (run) => run.collapsed.reason, (run) => run.collapsed.round), scale));
  }
  const title = literal(words(metric)) + (percent ? ", %" : "");
  show("curves", traces, {
    xaxis: { title: { text: COSTS[cost] }, type: logX ? "log" : "linear" },
    yaxis: { title: { text: title }, type: logY ? "log" : "linear" },
    ...(logY ? {} : targetLine(goal, metric)),
  }, `Line chart: ${words(metric)} against ${COSTS[cost]} of ${groups.map((group) => group.label).join("; ")}`);
}

function drawPareto(groups, goal) {
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
    line: { shape: "hv", color: color("--text"), width: 1.5, dash: "dot" }, hoverinfo: "skip" });
  show("pareto", traces, {
    xaxis: { title: { text: COSTS.bytes }, type: "log" }, yaxis: { title: { text: "accuracy, %" } }, ...targetLine(goal, "accuracy"),
  }, `Scatter chart: accuracy of every evaluation against bytes; ${plural(front.length, "evaluation")} on the Pareto front`);
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

// Streams are grays, since colors belong to runs: one end of the scale up, the other down. A stream keeps its gray whatever
// else is shown. On a dark page light grays stand out as dark ones do on a white page, in the same order.
function toneOf(name) {
  if (name === HEADERS) return TONES[HEADERS][0];
  const dark = matchMedia("(prefers-color-scheme: dark)").matches && !isPrinted(), down = name.startsWith("down");
  const tones = TONES[down === dark ? "up" : "down"], stream = name.split("/").slice(1).join("/");
  return (dark ? [...tones].reverse() : tones)[Object.hasOwn(SHADES, stream) ? SHADES[stream] : tones.length - 1];
}

// Bytes by stream, headers separate: as bars, as shares, or as dots, since bar lengths mean nothing on a logarithmic axis.
function drawStreams(groups, scale) {
  const means = groups.map(streamsOf), sums = means.map((mean) => mean.bytes), log = scale === "log", share = scale === "share";
  const totals = sums.map((sizes) => Object.values(sizes).reduce((sum, bytes) => sum + bytes, 0) || 1);
  // With its total: a bar that is a thousand times shorter than another cannot be seen.
  const titles = groups.map((group, at) => `${group.label}${meanOf(means[at].seeds)}: ${size(totals[at])}`);
  const names = [...new Set(sums.flatMap((sizes) => Object.keys(sizes)))];
  names.sort((a, b) => (a === HEADERS) - (b === HEADERS) || a.localeCompare(b));
  const half = groups.length <= 8 && !element("pareto-section").hidden;
  for (const name of ["streams", "pareto"]) element(name).closest("section").classList.toggle("half", half);
  // Labels are above the bars, so that both have the full width. Positions are pixels from the top.
  const chart = element("streams"), letters = Math.max(20, Math.floor((chart.clientWidth - 46) / 6.8));
  const labels = titles.map((title) => wrapped(title, letters));
  let height = 0;
  const tops = labels.map((label) => (height += GAP + LINE * label.length + BAR) - BAR);
  chart.style.height = `${Math.max(200, height + 110 + (chart.clientWidth < 500 ? 10 * names.length : 0))}px`;
  // Charts side by side have the same height.
  element("pareto").style.height = half && innerWidth > 800 && !isPrinted() ? chart.style.height : "";
  const traces = names.map((name, order) => {
    const bytes = sums.map((sizes) => sizes[name] ?? 0), hatched = name === HEADERS && !log ? { pattern: { shape: "/", size: 5 } } : {};
    const mark = { color: toneOf(name), ...hatched, ...(log ? {} : { line: { color: color("--panel"), width: 0.5 } }) };
    const texts = titles.map((title, at) => `${literal(title)}<br>${literal(name)}: ${size(bytes[at])}, ${number(100 * bytes[at] / totals[at], 2)} %`);
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
    annotations: labels.map((label, at) => ({ text: label.map(literal).join("<br>"), x: 0, xref: "paper", xanchor: "left", xshift: 16, align: "left",
      y: tops[at], yanchor: "bottom", borderpad: 0, showarrow: false })),
    // A square in the color of the run, before its label.
    shapes: labels.map((label, at) => ({ type: "rect", xref: "paper", xsizemode: "pixel", xanchor: 0, x0: 0, x1: 11, y0: tops[at] - LINE * label.length + 2,
      y1: tops[at] - LINE * label.length + 13, fillcolor: groups[at].color, line: { width: 0 } })),
    margin: { l: 12, r: 15, t: 10, b: 45 },
  }, `Bar chart: bytes by stream. ${titles.join("; ")}`);
}

function drawCourse(groups, name, log) {
  const columns = (run) => run.course[name] && { rounds: run.course.round, x: run.course.round, y: run.course[name] };
  const bands = groups.map((group) => [group, spread(group, 1, columns)]).filter(([, band]) => band);
  show("course", bands.flatMap(([group, band]) => bandTraces(group, band, (values) => values, "%{y:.4g} in round %{x}")), {
    xaxis: { title: { text: "round" } }, yaxis: { title: { text: literal(words(name)) }, type: log ? "log" : "linear" },
  }, `Line chart: ${words(name)} by round`);
}

// The distribution over the clients of all seeds: the sorted values, from the lowest to the highest.
function drawClients(groups, name) {
  const percent = inPercent(name);
  const traces = groups.map((group) => {
    const values = group.runs.flatMap(({ client_metrics: own, seed }) => (own?.values[name] ?? []).map((value, at) => ({ value, client: `client ${own.clients[at]}, seed ${seed}` })))
      .filter(({ value }) => value !== null).sort((a, b) => a.value - b.value);
    return { x: values.map((_, at) => (100 * (at + 1)) / values.length), y: values.map(({ value }) => (percent ? 100 * value : value)), name: literal(group.label), mode: "lines",
      text: values.map(({ client }) => literal(client)), line: { color: group.color, width: 2, dash: group.dash, shape: "vh" },
      hovertemplate: `${literal(group.label)}<br>%{x:.3g} % of ${plural(values.length, "client")}: at most %{y:.4g}${percent ? " %" : ""}<br>%{text}<extra></extra>` };
  }).filter((trace) => trace.y.length);
  show("clients", traces, { xaxis: { title: { text: "clients, %" }, range: [0, 101] }, yaxis: { title: { text: literal(words(name)) + (percent ? ", %" : "") } } },
    `Line chart: ${words(name)} of all clients, sorted`);
}

// A heat map. `axes` are the title and the names, if any, of the columns and of the rows.
function drawMatrix(name, matrix, more, [[across, columns], [down, rows]], unit) {
  const trace = { type: "heatmap", z: matrix, xgap: 0, ygap: 0, colorbar: { thickness: 12, title: { text: unit, side: "right" } }, ...more };
  const narrow = element(name).clientWidth < 450;
  // Names where there are some; otherwise ticks at whole numbers. A narrow chart has no room for twenty.
  const ticks = (count, names) => {
    if (names.length >= count && count <= 40) return { tickvals: [...Array(count).keys()], ticktext: names.slice(0, count).map((text) => literal(text.length > 20 ? `${text.slice(0, 19)}…` : text)) };
    return count <= 10 || (count <= 20 && !narrow) ? { dtick: 1 } : count <= 20 ? { dtick: 5 } : {};
  };
  show(name, [trace], { xaxis: { title: { text: across }, ...ticks(matrix[0].length, columns) },
    yaxis: { title: { text: down }, autorange: "reversed", ...ticks(matrix.length, rows) } },
    `Heat map with ${matrix.length} rows, ${down}, and ${matrix[0].length} columns, ${across}`);
}
