// The tables of the page.
"use strict";

function node(kind, properties = {}, ...children) {
  const made = Object.assign(document.createElement(kind), properties);
  made.append(...children);
  return made;
}

function swatch(group) {
  const made = node("span", { className: "swatch" });
  made.style.background = group.dash === "solid" ? group.color : `repeating-linear-gradient(90deg, ${group.color} 0 4px, transparent 4px 6px)`;
  return made;
}

// A row per line. The first cell of a line is its head.
function fillRows(table, heads, lines) {
  const head = node("tr", {}, ...heads.map((text) => node("th", { scope: "col" }, text)));
  const rows = lines.map(([first, ...cells]) => node("tr", {}, node("th", { scope: "row" }, ...[first].flat()), ...cells.map((cell) => (cell instanceof Node ? cell : node("td", {}, cell)))));
  table.replaceChildren(node("thead", {}, head), node("tbody", {}, ...rows));
}

// The mean over runs, and below it the range over seeds.
function ranged(values, written) {
  if (values.includes(null) || values.includes(undefined)) return "";
  const low = written(Math.min(...values)), high = written(Math.max(...values)), [start, unit] = low.split(" ");
  // "25.4 to 47.9 kB": a unit that both have is written once.
  const range = unit && high.endsWith(` ${unit}`) ? `${start} to ${high}` : `${low} to ${high}`;
  return node("td", {}, written(mean(values)), ...(low === high ? [] : [node("span", { className: "range" }, range)]));
}

function fillOutcome(groups, goal, rank, bySeed) {
  const runsOf = groups.flatMap((group) => group.runs), has = (name) => runsOf.some((run) => run.evaluations[name]);
  const timed = has("simulated_seconds"), targeted = has(goal.metric), ranked = Object.hasOwn(RANKED, rank) ? rank : "worth";
  const happened = Object.keys(TROUBLES).filter((name) => name !== "collapsed" && runsOf.some((run) => run.troubles?.[name]));
  const metrics = [...new Set(["accuracy", goal.metric, ...(Object.hasOwn(RANKED, rank) ? [] : [rank])])].filter((name) => name !== "loss" && has(name));
  const lower = (name) => runsOf.some((run) => run.lower_is_better.includes(name));
  const toIt = goal.value === null ? "target" : goal.text;
  const heads = ["run", ...metrics.map(words), ...(targeted ? [unbroken(`bytes to ${toIt}`), "times fewer", "rounds to target", ...(timed ? ["simulated seconds to target"] : [])] : []),
    "loss", "bytes up", "bytes down", ...happened.map((name) => TROUBLES[name])];
  // A phone shows the first two columns: there the second is the cost.
  const costly = targeted && innerWidth <= 800 && !isPrinted() ? 1 + metrics.length : 1;
  const arranged = (cells) => [cells[0], cells[costly], ...cells.slice(1).filter((_, at) => at + 1 !== costly)];
  const rows = groups.flatMap((group) => (bySeed ? group.runs.map((run) => [group, [run]]) : [[group, group.runs]])).map(([group, runs]) => {
    // A diverged run has no final model, so it does not count as having reached the target.
    const at = runs.map((run) => (run.diverged ? null : reached(run, goal)));
    const costs = (name) => at.map((each) => each?.[name] ?? null), last = (name) => runs.map((run) => run.evaluations[name]?.at(-1) ?? null);
    const average = (values) => (values.includes(null) ? null : mean(values)), signed = (name) => (lower(name) ? 1 : -1) * (average(last(name)) ?? (lower(name) ? Infinity : -Infinity));
    const failed = Math.max(...runs.map((run) => (run.diverged ? 2 : run.collapsed ? 1 : 0)));
    const cost = ranked === "worth" ? signed(rank) : average(costs(rank)) ?? Infinity;
    return { group, runs, at, costs, last, bytes: average(costs("bytes")), order: [failed, cost, ...[goal.metric, "accuracy", "loss"].map(signed)] };
  });
  // Runs that did not reach the target come last, ordered by its metric; then those that collapsed, and those that diverged.
  rows.sort((a, b) => a.order.reduce((sum, value, at) => sum || (value === b.order[at] ? 0 : value - b.order[at]), 0));
  const most = Math.max(...rows.map((row) => row.bytes ?? 0)), written = (name) => (value) => (name === "accuracy" ? `${(100 * value).toFixed(2)} %` : number(value, 4));
  fillRows(element("outcome"), arranged(heads), rows.map(({ group, runs, at, costs, last, bytes }) => {
    const seed = bySeed && group.runs.length > 1 ? `, seed ${runs[0].seed}` : "";
    const flags = runs.filter((run) => flaw(run) && !(targeted && run.diverged)).map(flaw).slice(0, 1).map((text) => node("span", { className: "flag" }, text));
    const toTarget = targeted ? [bytesTo(runs, at, goal), bytes === null ? "" : `${number(most / bytes)}x`, ranged(costs("round"), (value) => number(Math.round(value))),
      ...(timed ? [ranged(costs("time"), written(""))] : [])] : [];
    return arranged([[swatch(group), `${group.label}${seed} `, ...flags], ...metrics.map((name) => ranged(last(name), written(name))), ...toTarget,
      ranged(last("loss"), written("loss")), ranged(last("bytes_up"), size), ranged(last("bytes_down"), size),
      ...happened.map((name) => number(runs.reduce((sum, run) => sum + (run.troubles?.[name] ?? 0), 0)))]);
  }));
}

// The bytes to the target, or why there are none.
function bytesTo(runs, at, goal) {
  const flag = (text) => node("td", {}, node("span", { className: "flag" }, text));
  const failed = runs.filter((run) => run.diverged), missed = at.filter((each) => each === null).length;
  if (failed.length) return flag(runs.length > 1 ? `${failed.length} of ${runs.length} seeds diverged` : flaw(failed[0]));
  if (goal.value === null) return "";
  if (!runs.some((run) => run.milestones.length)) return `fewer than ${WINDOW} evaluations`;
  if (missed && runs.some((run) => !run.finished)) return "not yet";
  if (missed) return flag(runs.length > 1 ? `not reached by ${missed} of ${runs.length} seeds` : "not reached");
  return ranged(at.map((each) => each.bytes), size);
}

// Metrics that have a value for each class, such as class_accuracy_0, class_accuracy_1: the name, and the number of classes.
function classMetrics(runs) {
  const counts = new Map();
  for (const metric of new Set(runs.flatMap((run) => run.metrics))) {
    const [, name, digit] = metric.match(/^(.+)_(\d+)$/) ?? [];
    if (name && !/^(worst_)?(client|personal)_/.test(name)) counts.set(name, Math.max(counts.get(name) ?? 0, Number(digit) + 1));
  }
  return new Map([...counts].filter(([, count]) => count > 1));
}

// The final value of each class as a heat map of numbers, the mean over seeds. Low values are the colored ones.
function fillClasses(groups, name, count) {
  const numbers = [...Array(count).keys()];
  const lines = groups.map((group) => [[swatch(group), group.label], ...numbers.map((digit) => {
    const values = group.runs.map((run) => run.evaluations[`${name}_${digit}`]?.at(-1) ?? null).filter((value) => value !== null);
    if (!values.length) return "";
    const cell = node("td", {}, (100 * mean(values)).toFixed(0));
    cell.style.setProperty("--missing", `${Math.round(60 * Math.min(1, Math.max(0, 1 - mean(values))))}%`);
    return cell;
  })]);
  const names = groups.map((group) => group.runs[0].names.classes).find((found) => found.length >= count) ?? numbers.map(String);
  fillRows(element("classes"), ["run", ...names.slice(0, count)], lines.filter((line) => line.slice(1).some((cell) => cell !== "")));
}
