// The page's controls, tables and updates. A report contains its data; the live page polls for it.
"use strict";

const element = (name) => document.getElementById(name);
const hidden = new Set();
let data = JSON.parse(element("data").textContent);

function options(name, wanted, texts = {}) {
  const select = element(name), before = select.value;
  if (select.dataset.wanted !== JSON.stringify(wanted)) {
    select.dataset.wanted = JSON.stringify(wanted);
    select.replaceChildren(...wanted.map((value) => new Option(Object.hasOwn(texts, value) ? texts[value] : value.replaceAll("_", " "), value)));
    if (wanted.includes(before)) select.value = before;
  }
  return select.value;
}

function chosen() {
  return groupsOf(data.runs).filter((group) => !hidden.has(group.key));
}

function listRuns() {
  element("runs").replaceChildren(...groupsOf(data.runs).map((group) => {
    const label = document.createElement("label"), box = document.createElement("input");
    const [swatch, name, state] = ["span", "span", "span"].map((kind) => document.createElement(kind));
    box.type = "checkbox";
    box.checked = !hidden.has(group.key);
    box.addEventListener("change", () => { box.checked ? hidden.delete(group.key) : hidden.add(group.key); draw(); });
    swatch.className = "swatch";
    swatch.style.background = group.dash === "solid" ? group.color
      : `repeating-linear-gradient(90deg, ${group.color} 0 4px, transparent 4px 6px)`;
    state.className = "state";
    const going = group.runs.filter((run) => !run.finished && !run.diverged);
    const failed = group.runs.filter((run) => run.diverged).map(diverged).join(", ");
    const different = seedsOf(group.runs);
    const seeds = different > 1 ? `${different} seeds` : group.runs.length > 1 ? `${group.runs.length} runs` : "";
    const progress = going.map((run) => `round ${run.rounds}/${run.rounds_wanted}`).join(", ");
    state.textContent = [seeds, progress, failed].filter(Boolean).join(", ");
    name.append(group.label, " ", state);
    label.append(box, swatch, name);
    return label;
  }));
}

// The metric of the target, and what a number in the page is multiplied by: accuracies are in percent.
function goal() {
  const metric = data.target?.metric ?? "accuracy";
  return { metric, lower: data.target?.lower ?? false, factor: metric === "accuracy" ? 100 : 1 };
}

function fillTable(groups, target) {
  const { metric, lower, factor } = goal(), rank = element("rank").value, others = [...new Set([metric, rank])];
  const shown = others.filter((name) => !["accuracy", "loss"].includes(name) && data.runs.some((run) => run.metrics.includes(name)));
  const timed = groups.some((group) => group.runs.some((run) => run.evaluations.simulated_seconds));
  element("rank").querySelector("[value=time]").hidden = !timed;
  if (!timed && element("rank").value === "time") element("rank").value = "bytes";
  const heads = ["", "accuracy", ...shown.map((name) => name.replaceAll("_", " ")), "bytes to target", "fewer than the most", "rounds to target", ...(timed ? ["simulated seconds to target"] : []),
    "loss", "bytes up", "bytes down"];
  const happened = Object.keys(TROUBLES).filter((name) => groups.some((group) => group.runs.some((run) => run.troubles?.[name])));
  heads.push(...happened.map((name) => TROUBLES[name]));
  const rows = groups.flatMap((group) => group.runs.map((run) => {
    // A diverged run has no final model, so it does not count as having reached the target.
    const at = target === null || run.diverged ? null : reached(run, target / factor, lower), last = (name) => (run.evaluations[name] || []).at(-1);
    const value = last(rank) ?? null, sign = run.lower_is_better.includes(rank) ? 1 : -1;
    return { run, worth: value === null ? null : sign * value, label: group.runs.length > 1 ? `${group.label}, seed ${run.seed}` : group.label, last,
      bytes: at === null ? null : at.bytes, round: at === null ? null : at.round, time: at === null ? null : at.time };
  }));
  // Runs that did not reach the target come last, ordered by its metric.
  const key = ["bytes", "round", "time"].includes(rank) ? rank : "worth", better = lower ? -1 : 1;
  rows.sort((a, b) => a.run.diverged - b.run.diverged || (a[key] === null) - (b[key] === null) || a[key] - b[key]
    || better * ((b.last(metric) ?? 0) - (a.last(metric) ?? 0)));
  const most = Math.max(...rows.map((row) => row.bytes ?? 0));
  const cells = rows.map((row) => {
    const { last } = row, accuracy = last("accuracy"), up = last("bytes_up"), down = last("bytes_down");
    const never = target === null ? "" : row.run.milestones.length ? "not reached" : `fewer than ${WINDOW} evaluations`;
    const line = [row.label, accuracy === undefined || accuracy === null ? "" : `${(100 * accuracy).toFixed(2)} %`];
    line.push(...shown.map((name) => number(last(name), 4)));
    line.push(row.run.diverged ? diverged(row.run) : row.bytes === null ? never : size(row.bytes), row.bytes === null ? "" : `${number(most / row.bytes)}x`);
    line.push(number(row.round), ...(timed ? [number(row.time, 4)] : []), number(last("loss"), 4));
    line.push(up === undefined ? "" : size(up), down === undefined ? "" : size(down));
    return [...line, ...happened.map((name) => number(row.run.troubles?.[name] ?? 0))];
  });
  const line = (values, kind) => {
    const tr = document.createElement("tr");
    tr.append(...values.map((value) => Object.assign(document.createElement(kind), { textContent: value })));
    return tr;
  };
  element("outcome").replaceChildren(line(heads, "th"), ...cells.map((values) => line(values, "td")));
}

function listConfigs() {
  const open = new Set([...element("configs").children].filter((details) => details.open).map((details) => details.dataset.path));
  element("configs").replaceChildren(...data.runs.map((run) => {
    const details = document.createElement("details"), summary = document.createElement("summary");
    details.dataset.path = run.path;
    details.open = open.has(run.path);
    summary.textContent = `${run.label}, seed ${run.seed}: ${run.path}`;
    const command = document.createElement("pre"), config = document.createElement("pre");
    command.textContent = `laconic run config.toml      # the text below as config.toml, or: laconic run ${run.path} --out NEW`;
    config.textContent = run.config;
    details.append(summary, command, config);
    return details;
  }));
}

function matrixOf(section, name) {
  const having = data.runs.filter((run) => run[name]);
  element(`${section}-section`).hidden = !having.length;
  if (!having.length) return null;
  const texts = Object.fromEntries(having.map((run) => [run.path, `${run.label}, seed ${run.seed}`]));
  const path = options(`${section}-run`, having.map((run) => run.path), texts);
  const run = having.find(({ path: candidate }) => candidate === path), shown = run[name].length, all = run.settings.clients ?? shown;
  element(`${section}-note`).textContent = shown < all ? `The first ${number(shown)} of ${number(all)} clients.` : "";
  return run[name];
}

function draw() {
  if (!data.runs.length) return;
  const groups = chosen();
  const metrics = [...new Set(data.runs.flatMap((run) => run.metrics))];
  metrics.sort((a, b) => (b === "accuracy") - (a === "accuracy") || a.localeCompare(b));
  const costs = Object.keys(COSTS).filter((name) => data.runs.some((run) => column(run, name)));
  const metric = options("metric", metrics), cost = options("cost", costs, COSTS);
  const checked = (name) => element(name).checked;
  if (metric) drawCurves(groups, { metric, cost, logX: checked("log-x"), logY: checked("log-y"), smooth: checked("smooth") });
  drawStreams(groups, element("streams-scale").value);
  drawPareto(groups);
  const target = parseFloat(element("target").value);
  fillTable(groups, Number.isFinite(target) ? target : null);
  const courses = [...new Set(data.runs.flatMap((run) => Object.keys(run.course)))].filter((name) => name !== "round");
  courses.sort((a, b) => (a === "participants") - (b === "participants"));
  element("course-section").hidden = !courses.length;
  if (courses.length) drawCourse(groups, options("course-name", courses), checked("course-log"));
  const evaluated = data.runs.filter((run) => run.client_metrics);
  element("clients-section").hidden = !evaluated.length;
  if (evaluated.length) drawClients(groups, options("clients-metric", [...new Set(evaluated.flatMap((run) => Object.keys(run.client_metrics.values)))]));
  const similarity = matrixOf("similarity", "similarity");
  if (similarity) drawMatrix("similarity", similarity, { zmin: -1, zmax: 1, colorscale: "RdBu" }, ["client", "client"]);
  const labels = matrixOf("labels", "label_counts");
  if (labels) drawMatrix("labels", labels, { zmin: 0, colorscale: [[0, color("--panel")], [1, color("--accent")]] }, ["class", "client"]);
}

function update() {
  const going = data.runs.filter((run) => !run.finished && !run.diverged).length;
  const unreadable = Object.keys(data.unreadable || {});
  const sets = [...new Set(data.runs.map((run) => run.settings.dataset.split(/[\\/]/).pop()))].join(", ");
  const count = `${data.runs.length} run${data.runs.length === 1 ? "" : "s"}`;
  element("summary").textContent = data.runs.length ? `${count} on ${sets}${going ? `, ${going} not finished` : ""}` : `no runs yet in ${data.folder}`;
  document.querySelector("main").hidden = !data.runs.length;
  if (unreadable.length) element("summary").textContent += `; cannot be read: ${unreadable.join(", ")}`;
  if (!element("target").dataset.typed) {
    const { metric, lower, factor } = goal(), target = data.target ? factor * data.target.value : commonTarget(data.runs);
    if (target) element("target").value = Number(target.toPrecision(4));
    element("target-name").textContent = `${metric.replaceAll("_", " ")} of`;
    element("target-unit").textContent = factor === 100 ? "%" : "";
    element("target-side").textContent = lower ? "at most" : "at least";
    Object.assign(element("target"), factor === 100 ? { min: 0, max: 100, step: 0.5 } : { step: "any" });
  }
  if (!element("rank").dataset.set && data.runs.length) {
    element("rank").dataset.set = "yes";
    const metrics = [...new Set(data.runs.flatMap((run) => run.metrics))].sort();
    element("rank").append(...metrics.map((name) => Object.assign(document.createElement("option"), { value: name, textContent: name.replaceAll("_", " ") })));
    element("rank").value = data.rank_by === "rounds" ? "round" : data.rank_by ?? "bytes";
  }
  listRuns();
  listConfigs();
  draw();
}

for (const name of ["metric", "cost", "log-x", "log-y", "smooth", "target", "rank", "course-name", "course-log", "streams-scale", "clients-metric", "similarity-run", "labels-run"]) {
  element(name).addEventListener("input", draw);
}
element("target").addEventListener("input", () => { element("target").dataset.typed = "yes"; });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
// Redraw only if the width changes: on phones, scrolling changes the height.
let width = innerWidth;
addEventListener("resize", () => { if (width !== innerWidth) { width = innerWidth; draw(); } });
// Costs differ by orders of magnitude between runs, so the default axis is logarithmic.
element("log-x").checked = true;
element("course-log").checked = data.runs.some((run) => run.diverged);
update();

if (data.live) {
  let version = data.version;
  setInterval(async () => {
    let answer;
    try {
      answer = await fetch(`data?version=${version}`);
    } catch {
      element("summary").textContent = "laconic watch has stopped; this page shows its last data";
      version = "";
      return;
    }
    if (answer.status !== 200) return;
    data = await answer.json();
    version = data.version;
    update();
  }, 2000);
}
