// The head of the page: what was run, who won and by how much, and what to be careful about.
"use strict";

const words = (name) => name.replaceAll("_", " ");
const fileName = (path) => path.split(/[\\/]/).pop();
const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

// What a group needed to reach the target: the mean over seeds, and its range. Null unless every seed reached it.
function costOf(group, goal, cost) {
  const costs = group.runs.map((run) => (run.diverged ? null : reached(run, goal)?.[cost] ?? null));
  return costs.includes(null) ? null : { mean: mean(costs), low: Math.min(...costs), high: Math.max(...costs) };
}

// A metric of the final models: the mean over seeds, and its range. Null if a seed does not have it.
function finalOf(group, metric) {
  const values = group.runs.map((run) => run.evaluations[metric]?.at(-1) ?? null);
  return values.includes(null) ? null : { mean: mean(values), low: Math.min(...values), high: Math.max(...values) };
}

// Groups in the order of a number, those without it left out.
function ordered(groups, valueOf, sign) {
  const having = groups.map((group) => ({ group, value: valueOf(group) })).filter((entry) => entry.value !== null);
  return having.sort((a, b) => sign * (a.value.mean - b.value.mean));
}

// Costs: how to compare them, and how to write one.
const RANKED = { bytes: ["fewer bytes", "with", size], round: ["fewer rounds", "in", (count) => plural(Math.round(count), "round")],
  time: ["less simulated time", "in", (seconds) => `${number(seconds)} s`] };

// Compare the first two: the sentence of the headline, the groups in it, and whether their ranges over seeds overlap.
function winner(groups, goal, rank) {
  const sound = groups.filter((group) => !group.runs.some((run) => run.diverged || run.collapsed));
  const [first, second] = Object.hasOwn(RANKED, rank) ? ordered(sound, (group) => costOf(group, goal, rank), 1) : [];
  if (first) {
    const [word, preposition, written] = RANKED[rank];
    const start = `${first.group.label} reached ${goal.text} ${preposition} ${written(first.value.mean)}`;
    if (!second) return { text: groups.length > 1 ? `${start}; no other run reached it` : start, pair: [first.group] };
    const factor = second.value.mean / first.value.mean;
    const text = factor < 1.005 ? `${start}, the same as ${second.group.label}`
      : `${start}, ${number(factor)}x ${word} than ${second.group.label}, which needed ${written(second.value.mean)}`;
    return { text, pair: [first.group, second.group], overlap: second.value.low <= first.value.high };
  }
  const metric = [rank, goal.metric, "accuracy", "loss"].find((name) => sound.some((group) => finalOf(group, name)));
  const percent = metric === "accuracy", lower = groups.some((group) => group.runs.some((run) => run.lower_is_better.includes(metric)));
  const [best, next] = ordered(sound, (group) => finalOf(group, metric), lower ? 1 : -1);
  if (!best) return { text: "", pair: [] };
  const written = (value) => (percent ? `${(100 * value).toFixed(2)} %` : number(value, 4));
  const start = `${best.group.label} has ${percent ? "an" : "a"} ${words(metric)} of ${written(best.value.mean)}`;
  if (!next) return { text: start, pair: [best.group] };
  const overlap = lower ? next.value.low <= best.value.high : next.value.high >= best.value.low;
  return { text: `${start}, the best; ${next.group.label} has ${written(next.value.mean)}`, pair: [best.group, next.group], overlap };
}

// How far to trust the headline.
function caveat(pair, overlap) {
  if (!pair.length) return "";
  const seeds = Math.min(...pair.map((group) => seedsOf(group.runs)));
  if (pair.some((group) => group.runs.some((run) => !run.finished))) return "Not all of these runs are finished.";
  if (seeds < 2) return "One seed. Run three (--seeds 3) before you trust a small difference.";
  return overlap ? `Means of ${seeds} seeds, whose ranges overlap: the order may be chance.` : `Means of ${seeds} seeds.`;
}

// The settings that all runs share, or the values that occur.
function facts(runs) {
  const values = (key) => [...new Set(runs.map((run) => run.settings[key]).filter((value) => value !== undefined))];
  const joined = (key, text = String) => { const all = values(key); return all.length > 3 ? `${all.length} different` : all.map(text).join(", "); };
  const range = (numbers) => (Math.min(...numbers) === Math.max(...numbers) ? number(numbers[0]) : `${number(Math.min(...numbers))} to ${number(Math.max(...numbers))}`);
  const clients = values("clients"), participants = values("participants"), seeds = seedsOf(runs);
  const split = joined("partition"), perRound = participants.length && `${participants}` !== `${clients}` ? `, ${range(participants)} per round` : "";
  const last = Math.max(...runs.map((run) => run.started ?? 0));
  return Object.entries({
    Data: joined("dataset", fileName) + (split ? `, ${split}` : ""), Model: joined("model", fileName),
    Clients: clients.length ? range(clients) + perRound : "", Rounds: range(runs.map((run) => run.rounds_wanted)),
    Runs: `${number(runs.length)}${seeds > 1 ? `, ${plural(seeds, "seed")}` : ""}`,
    Date: last ? new Date(1000 * last).toLocaleDateString("en", { day: "numeric", month: "long", year: "numeric" }) : "",
  }).filter(([, value]) => value);
}

// What went wrong: one sentence per run, or per group if its runs failed in the same way.
function warnings(groups, goal) {
  return groups.flatMap((group) => {
    const several = group.runs.length > 1, reason = (run) => (run.diverged || !run.collapsed ? flaw(run) : run.collapsed.reason);
    const failed = [...new Set(group.runs.filter(flaw).map(reason))].map((text) => {
      const alike = group.runs.filter((run) => flaw(run) && reason(run) === text);
      return alike.length > 1 ? `${group.label}: ${text} in ${alike.length} of ${group.runs.length} runs` : `${group.label}${several ? `, seed ${alike[0].seed}` : ""}: ${text}`;
    });
    const done = group.runs.filter((run) => run.finished && run.milestones.length);
    const missed = goal.value === null ? [] : done.filter((run) => !flaw(run) && !reached(run, goal));
    const seeds = group.runs.length > 1 ? ` in ${missed.length} of ${group.runs.length} seeds` : "";
    return missed.length ? [...failed, `${group.label}: did not reach ${goal.text}${seeds}`] : failed;
  });
}

// A percent sign stays in the line of its number.
const unbroken = (text) => text.replaceAll(" %", "\u00a0%");

function fillHead(runs, groups, goal, rank) {
  const { text, pair, overlap } = winner(groups, goal, rank);
  element("headline").textContent = unbroken(text) || `${plural(runs.length, "run")} on ${fileName(runs[0].settings.dataset)}`;
  const chosen = goal.chosen && text.includes(` reached ${goal.text} `) ? `The target of ${goal.text} was chosen by this page.` : "";
  element("caveat").textContent = unbroken([caveat(pair, overlap), chosen].filter(Boolean).join(" "));
  element("facts").replaceChildren(...facts(runs).map(([name, value]) => node("div", {}, node("dt", {}, name), node("dd", {}, value))));
  const said = warnings(groups, goal), shown = said.slice(0, 6);
  if (said.length > shown.length) shown.push(`and ${said.length - shown.length} more`);
  element("warnings").hidden = !said.length;
  element("warnings").replaceChildren(...shown.map((warning) => node("li", {}, unbroken(warning))));
}
