// Groups of runs: runs that differ only in the seed are one group, drawn as a mean with a band.
"use strict";

const WINDOW = 5;
const COSTS = {
  bytes: "bytes, both directions", bytes_up: "bytes up", bytes_down: "bytes down", round: "rounds",
  gradients: "gradients of single examples", simulated_seconds: "simulated seconds", seconds: "wall-clock seconds",
};
const COLORS = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#17becf", "#bcbd22", "#7f7f7f"];

// Colors repeat after ten groups; then the line style changes.
const DASHES = ["solid", "dash", "dot", "dashdot"];
const HEADERS = "headers";
const TROUBLES = { cut_off: "cut off", lost: "lost state", refused: "refused", collapsed: "collapsed" };

function column(run, name) {
  const columns = run.evaluations;
  if (name === "bytes") return columns.bytes_up && columns.bytes_up.map((up, index) => up + columns.bytes_down[index]);
  return columns[name];
}

// Index of each group, which determines its color. It stays the same when runs are added or removed.
const indexOf = new Map();

function groupsOf(runs) {
  const groups = new Map();
  for (const run of runs) {
    if (!groups.has(run.group)) groups.set(run.group, { key: run.group, label: run.label, runs: [] });
    groups.get(run.group).runs.push(run);
  }
  return [...groups.values()].map((group) => {
    if (!indexOf.has(group.key)) indexOf.set(group.key, indexOf.size);
    const index = indexOf.get(group.key);
    return { ...group, color: COLORS[index % COLORS.length], dash: DASHES[Math.floor(index / COLORS.length) % DASHES.length] };
  });
}

function runningMean(values, width) {
  return values.map((_, end) => {
    const last = values.slice(Math.max(0, end - width + 1), end + 1);
    return last.some((value) => value === null) ? null : last.reduce((sum, value) => sum + value, 0) / last.length;
  });
}

// Mean, minimum and maximum over seeds per round. A round is skipped if a seed that has got that far has no value for it.
// A missing metric is a gap in the line.
function spread(group, metric, cost, width) {
  const having = group.runs.filter((run) => column(run, cost) && run.evaluations[metric]);
  if (!having.length) return null;
  const lines = having.map((run) => {
    const x = column(run, cost), y = width > 1 ? runningMean(run.evaluations[metric], width) : run.evaluations[metric];
    return new Map(run.evaluations.round.map((round, index) => [round, [x[index], y[index]]]));
  });
  const rounds = [...new Set(lines.flatMap((line) => [...line.keys()]))].sort((a, b) => a - b);
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const band = { seeds: seedsOf(having), x: [], mean: [], low: [], high: [] };
  for (const round of rounds) {
    const points = lines.filter((line) => line.has(round)).map((line) => line.get(round));
    if (points.length < lines.filter((line) => Math.max(...line.keys()) >= round).length) continue;
    const values = points.map((point) => point[1]);
    const complete = values.every((value) => value !== null);
    band.x.push(mean(points.map((point) => point[0])));
    band.mean.push(complete ? mean(values) : null);
    band.low.push(complete ? Math.min(...values) : null);
    band.high.push(complete ? Math.max(...values) : null);
  }
  return band;
}

function meanOf(seeds) {
  return seeds > 1 ? ` (mean of ${seeds} seeds)` : "";
}

function seedsOf(runs) {
  return new Set(runs.map((run) => run.seed)).size;
}

// Mean bytes by stream, headers separate, over the finished runs, or over all runs if none is finished.
function streamsOf(group) {
  const done = group.runs.filter((run) => run.finished), runs = done.length ? done : group.runs, bytes = Object.create(null);
  for (const { streams } of runs) {
    for (const [name, stream] of Object.entries(streams)) {
      bytes[name] = (bytes[name] ?? 0) + (stream.bytes - stream.headers) / runs.length;
      bytes[HEADERS] = (bytes[HEADERS] ?? 0) + stream.headers / runs.length;
    }
  }
  return { seeds: seedsOf(runs), bytes };
}

function diverged(run) {
  return run.rounds ? `diverged after round ${run.rounds}` : "diverged in the first round";
}

// The last point of a diverged run.
function lastPoint(run, metric, cost, width) {
  const x = column(run, cost), y = x && run.evaluations[metric] && runningMean(run.evaluations[metric], width);
  const index = y ? y.findLastIndex((value) => value !== null) : -1;
  return index < 0 ? null : { x: x[index], y: y[index], text: diverged(run) };
}

// The first evaluation at which the mean of the last five reaches the target, as in `compare --target`.
function reached(run, target, lower) {
  const milestone = run.milestones.find(([mean]) => (lower ? mean <= target : mean >= target));
  return milestone ? { round: milestone[1], bytes: milestone[2], time: milestone[3] } : null;
}

// The highest accuracy, in whole percent, that every run reached that did not diverge.
function commonTarget(runs) {
  const best = runs.filter((run) => run.milestones.length && !run.diverged).map((run) => run.milestones.at(-1)[0]);
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
  if (Math.abs(value) >= 1e12) return value.toExponential(2);
  return Number.isInteger(value) ? value.toLocaleString("en") : value.toPrecision(digits);
}
