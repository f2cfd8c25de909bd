// The page's controls and updates. A report contains its data; the live page polls for it.
"use strict";

const element = (name) => document.getElementById(name);
const hidden = new Set();
let data = JSON.parse(element("data").textContent);
const { colors: COLORS, tones: TONES, shades: SHADES } = data;

function options(name, wanted, texts = {}) {
  const select = element(name), before = select.value;
  if (select.dataset.wanted !== JSON.stringify(wanted)) {
    select.dataset.wanted = JSON.stringify(wanted);
    select.replaceChildren(...wanted.map((value) => new Option(Object.hasOwn(texts, value) ? texts[value] : words(value), value)));
    if (wanted.includes(before)) select.value = before;
  }
  return select.value;
}

// The target: its metric, the number in the page, what it is multiplied by (accuracies are in percent), and words.
function goalOf() {
  const metric = data.target?.metric ?? "accuracy", typed = parseFloat(element("target").value), value = Number.isFinite(typed) ? typed : null;
  const text = metric === "accuracy" ? `${value} %` : `${words(metric)} ${value}`;
  const chosen = !data.target && !element("target").dataset.typed;
  return { metric, value, text, chosen, lower: data.target?.lower ?? false, factor: metric === "accuracy" ? 100 : 1 };
}

// The runs on the chosen task: data set, partition, model and number of clients. Runs on different tasks are never compared.
function shownRuns() {
  const tasks = new Map();
  for (const run of data.runs) tasks.set(run.task, [...(tasks.get(run.task) ?? []), run]);
  const firsts = [...tasks.values()].map(([run]) => run.settings), written = { partition: String, model: (name) => fileName(String(name)), clients: (count) => plural(count, "client") };
  const texts = Object.fromEntries([...tasks].map(([task, runs]) => {
    const own = runs[0].settings, alike = firsts.filter((other) => other.dataset === own.dataset);
    // Only what tells a task from the others on its data set.
    const details = Object.keys(written).filter((key) => own[key] !== undefined && alike.some((other) => other[key] !== own[key])).map((key) => written[key](own[key]));
    return [task, `${[fileName(own.dataset), ...details].join(", ")} (${plural(runs.length, "run")})`];
  }));
  element("dataset-choice").hidden = tasks.size < 2;
  return tasks.get(options("dataset", [...tasks.keys()], texts));
}

function listRuns(groups) {
  element("runs").replaceChildren(...groups.map((group) => {
    const box = node("input", { type: "checkbox", checked: !hidden.has(group.key) });
    box.addEventListener("change", () => { box.checked ? hidden.delete(group.key) : hidden.add(group.key); draw(); });
    const going = group.runs.filter((run) => !run.finished && !run.diverged);
    const failed = [...new Set(group.runs.map(flaw).filter(Boolean))].join(", ");
    const different = seedsOf(group.runs);
    const seeds = different > 1 ? `${different} seeds` : group.runs.length > 1 ? `${group.runs.length} runs` : "";
    const progress = going.map((run) => `round ${run.rounds}/${run.rounds_wanted}`).join(", ");
    const state = node("span", { className: "state" }, [seeds, progress].filter(Boolean).join(", "));
    return node("label", {}, box, swatch(group), node("span", {}, group.label, " ", state, " ", ...(failed ? [node("span", { className: "flag" }, failed)] : [])));
  }));
}

function listConfigs(runs) {
  const open = new Set([...element("configs").children].filter((details) => details.open).map((details) => details.dataset.path));
  element("configs").replaceChildren(...runs.map((run) => {
    const text = (content) => node("pre", { tabIndex: 0 }, content);
    const details = node("details", { open: open.has(run.path) }, node("summary", {}, `${run.label}, seed ${run.seed}: ${run.path}`),
      text(`laconic run config.toml      # the text below as config.toml, or: laconic run ${run.path} --out NEW`), text(run.config));
    details.dataset.path = run.path;
    return details;
  }));
}

function matrixOf(runs, section, name) {
  const having = runs.filter((run) => run[name]);
  element(`${section}-section`).hidden = !having.length;
  if (!having.length) return null;
  const texts = Object.fromEntries(having.map((run) => [run.path, `${run.label}, seed ${run.seed}`]));
  const path = options(`${section}-run`, having.map((run) => run.path), texts);
  const run = having.find(({ path: candidate }) => candidate === path), shown = run[name].length, all = run.settings.clients ?? shown;
  element(`${section}-note`).textContent = shown < all ? `The first ${number(shown)} of ${number(all)} clients.` : "";
  return [run[name], run.names];
}

// Whether a few values are so much larger than most that a linear axis would show only them.
function isWild(values) {
  const sorted = values.filter((value) => value !== null).sort((a, b) => a - b);
  return sorted[0] > 0 && sorted.at(-1) > 100 * sorted[Math.floor(sorted.length / 2)];
}

// A half section without a neighbor has the full width.
function widen() {
  const set = (section, alone) => {
    if (section.classList.contains("alone") === alone) return;
    section.classList.toggle("alone", alone);
    Plotly.Plots.resize(section.querySelector(".chart"));
  };
  let lone = null;
  for (const section of [...document.querySelectorAll("main > section:not([hidden])"), null]) {
    const half = section !== null && section.classList.contains("half");
    if (lone) set(lone, !half);
    if (lone && half) set(section, false);
    lone = half && !lone ? section : null;
  }
}

function drawDetails(runs, groups) {
  const courses = [...new Set(runs.flatMap((run) => Object.keys(run.course)))].filter((name) => name !== "round");
  courses.sort((a, b) => (a === "participants") - (b === "participants"));
  element("course-section").hidden = !courses.length;
  if (courses.length) {
    const name = options("course-name", courses), log = element("course-log");
    if (!log.dataset.typed) log.checked = runs.some((run) => run.diverged) || isWild(runs.flatMap((run) => run.course[name] ?? []));
    drawCourse(groups, name, log.checked);
  }
  const classes = classMetrics(runs);
  element("classes-section").hidden = !classes.size;
  if (classes.size) {
    const name = options("classes-metric", [...classes.keys()]);
    fillClasses(groups, name, classes.get(name));
  }
  const metrics = [...new Set(runs.flatMap((run) => Object.keys(run.client_metrics?.values ?? {})))];
  metrics.sort((a, b) => b.endsWith("_accuracy") - a.endsWith("_accuracy"));
  element("clients-section").hidden = !metrics.length;
  if (metrics.length) drawClients(groups, options("clients-metric", metrics));
  const similarity = matrixOf(runs, "similarity", "similarity");
  if (similarity) {
    const [matrix, { clients }] = similarity;
    drawMatrix("similarity", matrix, { zmin: -1, zmax: 1, colorscale: "RdBu" }, [["client", clients], ["client", clients]], "cosine");
  }
  const labels = matrixOf(runs, "labels", "label_counts");
  if (labels) {
    const [matrix, { clients, classes }] = labels, colorscale = [[0, color("--panel")], [1, color("--accent")]];
    drawMatrix("labels", matrix, { zmin: 0, zmax: Math.max(1, ...matrix.flat()), colorscale }, [["class", classes], ["client", clients]], "examples");
  }
}

function draw() {
  if (!data.runs.length) return;
  const runs = shownRuns(), all = groupsOf(runs), groups = all.filter((group) => !hidden.has(group.key));
  listRuns(all);
  listConfigs(runs);
  if (!element("target").dataset.typed) {
    const target = data.target ? goalOf().factor * data.target.value : commonTarget(all);
    element("target").value = target ? Number(target.toPrecision(4)) : "";
  }
  const timed = runs.some((run) => run.evaluations.simulated_seconds), ranks = element("rank"), goal = goalOf();
  ranks.querySelector("[value=time]").hidden = !timed;
  if (!timed && ranks.value === "time") ranks.value = "bytes";
  fillHead(runs, groups, goal, ranks.value);
  // Regression and language models have no accuracy: no front, and a target only if another metric is given.
  const accurate = runs.some((run) => run.evaluations.accuracy), targeted = runs.some((run) => run.evaluations[goal.metric]);
  element("pareto-section").hidden = !accurate;
  for (const name of ["target-choice", "outcome-note"]) element(name).hidden = !targeted;
  element("outcome-title").textContent = targeted ? "Cost to the target" : "Outcome";
  const byClass = classMetrics(runs), plain = (name) => !byClass.has(name.replace(/_\d+(_spread)?$/, "").replace(/^(worst_)?(client|personal)_/, ""));
  const metrics = [...new Set(runs.flatMap((run) => run.metrics))].filter(plain);
  const usual = (name) => (name === goal.metric ? 0 : name === "accuracy" ? 1 : name === "loss" ? 2 : 3);
  metrics.sort((a, b) => usual(a) - usual(b) || a.localeCompare(b));
  const costs = Object.keys(COSTS).filter((name) => runs.some((run) => column(run, name)));
  const metric = options("metric", metrics), cost = options("cost", costs, COSTS), checked = (name) => element(name).checked;
  if (metric) drawCurves(groups, { metric, cost, logX: checked("log-x"), logY: checked("log-y"), smooth: checked("smooth"), goal });
  element("by-seed").closest("label").hidden = !all.some((group) => group.runs.length > 1);
  fillOutcome(groups, goal, ranks.value, checked("by-seed"));
  drawStreams(groups, element("streams-scale").value);
  if (accurate) drawPareto(groups, goal);
  drawDetails(runs, groups);
  widen();
}

function update() {
  const going = data.runs.filter((run) => !run.finished && !run.diverged).length, unreadable = Object.keys(data.unreadable || {});
  const sets = [...new Set(data.runs.map((run) => fileName(run.settings.dataset)))].join(", ");
  const count = data.runs.length ? `${plural(data.runs.length, "run")} on ${sets}` : `no runs yet in ${data.folder}`;
  element("summary").textContent = [count, ...(going ? [`${going} not finished`] : []), ...(unreadable.length ? [`cannot be read: ${unreadable.join(", ")}`] : [])].join("; ");
  for (const part of [document.querySelector("main"), element("result")]) part.hidden = !data.runs.length;
  if (!element("rank").dataset.set && data.runs.length) {
    element("rank").dataset.set = "yes";
    const { metric, lower, factor } = goalOf(), metrics = [...new Set(data.runs.flatMap((run) => run.metrics))].sort();
    element("target-name").textContent = `${words(metric)} of`;
    element("target-unit").textContent = factor === 100 ? "%" : "";
    element("target-side").textContent = lower ? "at most" : "at least";
    Object.assign(element("target"), factor === 100 ? { min: 0, max: 100, step: 0.5 } : { min: "", max: "", step: "any" });
    element("rank").append(...metrics.map((name) => new Option(words(name), name)));
    element("rank").value = data.rank_by === "rounds" ? "round" : data.rank_by ?? "bytes";
  }
  draw();
}

const CONTROLS = ["dataset", "metric", "cost", "log-x", "log-y", "smooth", "target", "rank", "by-seed", "course-name", "course-log", "streams-scale", "classes-metric", "clients-metric", "similarity-run", "labels-run"];
for (const name of ["target", "course-log"]) element(name).addEventListener("input", () => { element(name).dataset.typed = "yes"; });
for (const name of CONTROLS) element(name).addEventListener("input", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
// Redraw only if the width changes: on phones, scrolling changes the height.
let width = innerWidth;
addEventListener("resize", () => { if (width !== innerWidth) { width = innerWidth; draw(); } });
// Paper is white, and as wide as a sheet: charts are drawn for it, and then for the screen again.
function printing(on) {
  document.documentElement.classList.toggle("printing", on);
  draw();
}
addEventListener("beforeprint", () => printing(true));
addEventListener("afterprint", () => printing(false));
// Costs differ by orders of magnitude between runs, so the default axis is logarithmic.
element("log-x").checked = true;
update();

if (data.live) {
  element("kind").textContent = "live";
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
