// Runs as settings: seeds of one setting are a group, with a mean and a band.
"use strict";

const WINDOW = 5;
const COSTS = {
  bytes: "bytes, both directions", bytes_up: "bytes up", bytes_down: "bytes down", round: "rounds",
  gradients: "gradients of single examples", simulated_seconds: "simulated seconds", seconds: "seconds of this machine",
};
const COLORS = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#17becf", "#bcbd22", "#7f7f7f"];

// Colors come again after ten groups; then the line changes.
const DASHES = ["solid", "dash", "dot", "dashdot"];
const HEADERS = "headers";
const TROUBLES = { cut_off: "cut off", lost: "lost state", refused: "refused" };

function column(run, name) {
  const found = run.evaluations;
  if (name === "bytes") return found.bytes_up && found.bytes_up.map((up, place) => up + found.bytes_down[place]);
  return found[name];
}

// A group keeps its color while runs come and go.
const places = new Map();

function groupsOf(runs) {
  const groups = new Map();
  for (const run of runs) {
    if (!groups.has(run.group)) groups.set(run.group, { key: run.group, label: run.label, runs: [] });
    groups.get(run.group).runs.push(run);
  }
  return [...groups.values()].map((group) => {
    if (!places.has(group.key)) places.set(group.key, places.size);
    const place = places.get(group.key);
    return { ...group, color: COLORS[place % COLORS.length], dash: DASHES[Math.floor(place / COLORS.length) % DASHES.length] };
  });
}

function running(values, width) {
  return values.map((_, end) => {
    const last = values.slice(Math.max(0, end - width + 1), end + 1);
    return last.some((value) => value === null) ? null : last.reduce((sum, value) => sum + value, 0) / last.length;
  });
}

// Mean, lowest and highest over the seeds, at the rounds that all seeds have that have come so far. What is not a number is a gap.
function spread(group, metric, cost, width) {
  const having = group.runs.filter((run) => column(run, cost) && run.evaluations[metric]);
  if (!having.length) return null;
  const lines = having.map((run) => {
    const x = column(run, cost), y = width > 1 ? running(run.evaluations[metric], width) : run.evaluations[metric];
    return new Map(run.evaluations.round.map((round, place) => [round, [x[place], y[place]]]));
  });
  const rounds = [...new Set(lines.flatMap((line) => [...line.keys()]))].sort((one, other) => one - other);
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const found = { seeds: seedsOf(having), x: [], mean: [], low: [], high: [] };
  for (const round of rounds) {
    const there = lines.filter((line) => line.has(round)).map((line) => line.get(round));
    if (there.length < lines.filter((line) => Math.max(...line.keys()) >= round).length) continue;
    const values = there.map((pair) => pair[1]);
    const whole = values.every((value) => value !== null);
    found.x.push(mean(there.map((pair) => pair[0])));
    found.mean.push(whole ? mean(values) : null);
    found.low.push(whole ? Math.min(...values) : null);
    found.high.push(whole ? Math.max(...values) : null);
  }
  return found;
}

function meanOf(seeds) {
  return seeds > 1 ? ` (mean of ${seeds} seeds)` : "";
}

function seedsOf(runs) {
  return new Set(runs.map((run) => run.seed)).size;
}

// Bytes by stream, headers apart: the mean of the seeds, of those that came to their end if any did.
function streamsOf(group) {
  const done = group.runs.filter((run) => run.finished), runs = done.length ? done : group.runs, bytes = {};
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

// Where a run was when it diverged.
function lastPoint(run, metric, cost, width) {
  const x = column(run, cost), y = x && run.evaluations[metric] && running(run.evaluations[metric], width);
  const place = y ? y.findLastIndex((value) => value !== null) : -1;
  return place < 0 ? null : { x: x[place], y: y[place], told: diverged(run) };
}

// The first evaluation at which the mean of the last five is at the target, as `compare --target` has it.
function reached(run, target) {
  const found = run.milestones.find(([mean]) => mean >= target);
  return found ? { round: found[1], bytes: found[2], time: found[3] } : null;
}

// The accuracy that every run has reached that did not diverge, in whole per cent.
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
