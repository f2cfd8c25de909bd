// Groups of runs: runs that differ only in the seed are one group, drawn as a mean with a band.
"use strict";

const WINDOW = 5;
const COSTS = {
  bytes: "bytes, both directions", bytes_up: "bytes up", bytes_down: "bytes down", round: "rounds",
  gradients: "gradients of single examples", simulated_seconds: "simulated seconds", seconds: "wall-clock seconds",
};
// Colors repeat after eight groups; then the line style changes.
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const HEADERS = "headers";
const TROUBLES = { cut_off: "cut off", lost: "lost state", refused: "refused", collapsed: "collapsed" };

function column(run, name) {
  const columns = run.evaluations;
  if (name === "bytes") return columns.bytes_up && columns.bytes_up.map((up, index) => up + columns.bytes_down[index]);
  return columns[name];
}

function groupsOf(runs) {
  const groups = new Map();
  for (const run of runs) {
    if (!groups.has(run.group)) groups.set(run.group, { key: run.group, label: run.label, index: run.color ?? 0, runs: [] });
    groups.get(run.group).runs.push(run);
  }
  return [...groups.values()].map((group) => ({ ...group, color: COLORS[group.index % COLORS.length],
    dash: DASHES[Math.floor(group.index / COLORS.length) % DASHES.length] }));
}

function runningMean(values, width) {
  return values.map((_, end) => {
    const last = values.slice(Math.max(0, end - width + 1), end + 1);
    return last.some((value) => value === null) ? null : last.reduce((sum, value) => sum + value, 0) / last.length;
  });
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

// Mean, minimum and maximum over seeds per round. A round is skipped if a seed that has got that far has no value for it.
// A missing metric is a gap in the line.
function spread(group, width, columnsOf) {
  const having = group.runs.filter((run) => columnsOf(run));
  if (!having.length) return null;
  const lines = having.map((run) => {
    const { rounds, x, y } = columnsOf(run), smooth = width > 1 ? runningMean(y, width) : y;
    return new Map(rounds.map((round, index) => [round, [x[index], smooth[index]]]));
  });
  const rounds = [...new Set(lines.flatMap((line) => [...line.keys()]))].sort((a, b) => a - b);
  const ends = lines.map((line) => Math.max(...line.keys()));
  const band = { seeds: seedsOf(having), x: [], mean: [], low: [], high: [] };
  for (const round of rounds) {
    const points = lines.filter((line) => line.has(round)).map((line) => line.get(round));
    if (points.length < ends.filter((end) => end >= round).length) continue;
    const values = points.map((point) => point[1]);
    const complete = values.every((value) => value !== null);
    band.x.push(mean(points.map((point) => point[0])));
    band.mean.push(complete ? mean(values) : null);
    band.low.push(complete ? Math.min(...values) : null);
    band.high.push(complete ? Math.max(...values) : null);
  }
  return band;
}

function evaluated(metric, cost) {
  return (run) => column(run, cost) && run.evaluations[metric]
    && { rounds: run.evaluations.round, x: column(run, cost), y: run.evaluations[metric] };
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

// What went wrong with a run, in the words of the table in the terminal. Empty if nothing did.
function flaw(run) {
  if (run.diverged) return `diverged in round ${number(run.rounds + 1)}`;
  if (run.collapsed) return `collapsed in round ${number(run.collapsed.round)}`;
  return run.at_chance ? "no better than chance" : "";
}

// The last evaluation of a run up to a round that has the metric.
function lastPoint(run, metric, cost, width, round = Infinity) {
  const x = column(run, cost), y = x && run.evaluations[metric] && runningMean(run.evaluations[metric], width);
  const index = y ? y.findLastIndex((value, at) => value !== null && run.evaluations.round[at] <= round) : -1;
  return index < 0 ? null : { x: x[index], y: y[index] };
}

// The first evaluation at which the mean of the last five reaches the target, as in `compare --target`.
function reached(run, goal) {
  const wanted = goal.value / goal.factor, milestone = goal.value === null ? null : run.milestones.find(([value]) => (goal.lower ? value <= wanted : value >= wanted));
  return milestone ? { round: milestone[1], bytes: milestone[2], time: milestone[3] } : null;
}

// The highest accuracy, in whole percent, that at least half of the sound groups reached with every seed: two or more, if there are two.
function commonTarget(groups) {
  const sound = groups.filter((group) => group.runs.every((run) => run.milestones.length && !flaw(run)));
  const best = sound.map((group) => Math.min(...group.runs.map((run) => run.milestones.at(-1)[0]))).sort((a, b) => b - a);
  return best.length ? Math.floor(100 * best[Math.min(best.length - 1, Math.max(1, Math.ceil(best.length / 2) - 1))]) : null;
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
