// Runs as settings: seeds of one setting are a group, with a mean and a band.
"use strict";

const WINDOW = 5;
const COSTS = {
  bytes: "bytes, both directions", bytes_up: "bytes up", bytes_down: "bytes down", round: "rounds",
  gradients: "gradients of single examples", simulated_seconds: "simulated seconds", seconds: "seconds of this machine",
};
const COLOURS = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#17becf", "#bcbd22", "#7f7f7f"];

// Colours come again after ten groups; then the line changes.
const DASHES = ["solid", "dash", "dot", "dashdot"];
const TROUBLES = { cut_off: "cut off", lost: "lost state", refused: "refused" };

function column(run, name) {
  const found = run.evaluations;
  if (name === "bytes") return found.bytes_up && found.bytes_up.map((up, place) => up + found.bytes_down[place]);
  return found[name];
}

function groupsOf(runs) {
  const groups = new Map();
  for (const run of runs) {
    if (!groups.has(run.group)) groups.set(run.group, { key: run.group, label: run.label, runs: [] });
    groups.get(run.group).runs.push(run);
  }
  return [...groups.values()].map((group, place) => ({ ...group, colour: COLOURS[place % COLOURS.length],
    dash: DASHES[Math.floor(place / COLOURS.length) % DASHES.length] }));
}

function running(values, width) {
  return values.map((_, end) => {
    const last = values.slice(Math.max(0, end - width + 1), end + 1);
    return last.reduce((sum, value) => sum + value, 0) / last.length;
  });
}

// Mean, lowest and highest over the seeds at every evaluation that all of them have.
function spread(group, metric, cost, width) {
  const pairs = group.runs
    .map((run) => [column(run, cost), run.evaluations[metric]])
    .filter(([x, y]) => x && y)
    .map(([x, y]) => [x, width > 1 ? running(y, width) : y]);
  if (!pairs.length) return null;
  const length = Math.min(...pairs.map(([x]) => x.length));
  const over = (part, merge) => Array.from({ length }, (_, place) => merge(pairs.map((pair) => pair[part][place])));
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  return {
    seeds: new Set(group.runs.map((run) => run.seed)).size, x: over(0, mean), mean: over(1, mean),
    low: over(1, (values) => Math.min(...values)), high: over(1, (values) => Math.max(...values)),
  };
}

// The first evaluation at which the mean of the last five is at the target, as `compare --target` has it.
function reached(run, target) {
  const accuracy = run.evaluations.accuracy || [];
  for (let end = WINDOW; end <= accuracy.length; end++) {
    const mean = accuracy.slice(end - WINDOW, end).reduce((sum, value) => sum + value, 0) / WINDOW;
    if (mean >= target) return end - 1;
  }
  return null;
}

// The accuracy that every run has reached, in whole per cent.
function commonTarget(runs) {
  const best = runs.map((run) => {
    const means = running(run.evaluations.accuracy || [], WINDOW).slice(WINDOW - 1);
    return means.length ? Math.max(...means) : 0;
  }).filter((value) => value > 0);
  return best.length ? Math.floor(100 * Math.min(...best)) : null;
}

function size(count) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (count < 999.5 || unit === "GB") return `${unit === "B" ? count.toFixed(0) : count.toPrecision(3)} ${unit}`;
    count /= 1000;
  }
}

function number(value, digits = 3) {
  if (value === null || value === undefined) return "";
  return Number.isInteger(value) ? value.toLocaleString("en") : value.toPrecision(digits);
}
