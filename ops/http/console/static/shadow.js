// The page of a shadow: asks for its report every two seconds. No library, no request to anywhere else.

import { bytes, count, element, seconds, table, tell } from "./draw.js";

const EVERY = 2000;
const SHOWN = 50;
const by = (id) => document.getElementById(id);
const STATES = { equal: "ready", incomplete: "waiting", different: "bad", unreadable: "bad" };
let token = sessionStorage.getItem("statehold-token") ?? "", drawn = "";

/** Draw only what changed, so that a selection stays. */
function place(id, nodes, told) {
  const text = JSON.stringify(told);
  if (by(id).dataset.told === text) return;
  by(id).dataset.told = text;
  by(id).replaceChildren(...nodes());
}

function trouble(text) {
  by("trouble").hidden = !text;
  tell(by("trouble"), text);
  document.body.dataset.stale = text ? "true" : "false";
}

const wrong = (each) => each.changed + each.missing + each.added;
const all = (report) => report.partitions.flatMap((found) => found.compared.map((each) => ({ partition: found.partition, ...each })));

function show(report) {
  const rows = all(report), differ = rows.reduce((sum, each) => sum + wrong(each) + each.passing, 0);
  const records = report.partitions.reduce((sum, each) => sum + each.records, 0);
  const behind = report.partitions.map((each) => (each.phase === "following" && each.age >= 0 ? each.age : null));
  const since = new Date(Date.now() - report.seconds * 1000).toISOString().replace(/\.\d+Z/, "Z");
  tell(by("service"), `Shadow of ${report.service}`);
  tell(by("about"), `reads ${report.inputs.join(", ")} · since ${since}`);
  by("verdict").dataset.state = STATES[report.verdict];
  tell(by("verdict").lastElementChild, report.verdict);
  document.title = `${report.verdict === "equal" ? "" : "! "}shadow of ${report.service}`;
  totals([["shadowing for", seconds(report.seconds)], ["records compared", count(records)], ["results that differ", count(differ)],
    ["behind the service", behind.length && !behind.includes(null) ? seconds(Math.max(...behind)) : "–"], ["memory", bytes(report.memory)]]);
  differences(rows);
  partitions(report.partitions);
  examples(report);
}

function totals(rows) {
  if (by("totals").children.length !== rows.length) by("totals").replaceChildren(...rows.map(([name]) => element("div", {}, element("dt", {}, name), element("dd"))));
  rows.forEach(([, value], at) => tell(by("totals").children[at].lastElementChild, value));
}

/** One row for each partition and topic, table or kind; those that differ first. */
function differences(rows) {
  const sorted = rows.filter((each) => each.compared || wrong(each) || each.passing || each.not_compared)
    .sort((one, other) => (wrong(other) + other.passing > 0) - (wrong(one) + one.passing > 0) || one.partition - other.partition);
  place("differences", () => (sorted.length ? [table("what differs", ["partition", "what", "result", "compared", "changed", "missing", "added", "differed for a time", "fields"], sorted.map((each) => {
    const level = wrong(each) ? ["FAIL", "differs"] : each.passing ? ["WARN", "differed"] : ["PASS", "equal"];
    const fields = Object.entries(each.fields).sort((one, other) => other[1] - one[1]).map(([name, number]) => `${name} ${count(number)}`);
    return [`${each.partition}`, each.kind === each.name ? each.kind : `${each.kind} ${each.name}`, element("span", { className: "level", data: { level: level[0] } }, level[1]),
      count(each.compared), count(each.changed), count(each.missing), count(each.added), count(each.passing), fields.join(", ") || "–"];
  }))] : [element("p", {}, "Nothing was compared yet.")]), sorted);
}

function partitions(found) {
  place("partitions", () => [table("partitions", ["partition", "state", "behind", "records", "transactions", "handler per record", "starts", "passed over", "notes"], found.map((each) => [
    `${each.partition}`, each.why ? `${each.phase}: ${each.why}` : each.phase, each.age >= 0 ? seconds(each.age) : "–", count(each.records), count(each.transactions),
    each.records ? `${(each.handler_seconds / each.records * 1e6).toFixed(1)} µs` : "–", count(each.starts), count(each.passed_over), [...each.unreadable, ...each.notes].join("; ") || "–"]))], found);
}

function examples(report) {
  const found = report.partitions.flatMap((each) => each.examples);
  by("token").hidden = !report.hidden || report.hidden.includes("ops.state");
  tell(by("hidden"), found.length && report.hidden ? `Keys and values are not shown: ${report.hidden}` : "");
  place("examples", () => (found.length ? found.slice(0, SHOWN).map((each) => example(each, report.hidden)) : [element("p", { className: "quiet" }, "No difference was found.")]), [found, report.hidden]);
}

function example(each, hidden) {
  const side = (name, value) => [element("dt", {}, name), element("dd", {}, element("code", {}, value === null && each.how !== "changed" ? "–" : JSON.stringify(value)))];
  const key = hidden || each.key === null ? "" : ` · key ${JSON.stringify(each.key)}`;
  const fields = each.fields.length ? ` · ${each.fields.join(", ")}` : "";
  return element("div", { className: "card example" },
    element("h3", {}, each.kind === each.name ? each.kind : `${each.kind} ${each.name}`, element("span", {}, each.how)),
    element("p", { className: "quiet" }, `${each.record || "stored"}${key}${fields}`),
    hidden ? null : element("dl", { className: "sides" }, ...side("live", each.live), ...side("new", each.new)));
}

async function turn() {
  try {
    const reply = await fetch("report", { headers: token ? { Authorization: `Bearer ${token}` } : {}, cache: "no-store" });
    const told = await reply.json();
    if (reply.ok) { trouble(""); show(told); drawn = "yes"; return; }
    by("token").hidden = reply.status !== 401;
    by("main").hidden = !drawn;
    trouble(told.error);
  } catch (error) {
    trouble(`No answer: ${error.message}. The shadow may have ended. What is shown may be old.`);
  }
}

by("token").addEventListener("submit", (event) => {
  event.preventDefault();
  token = by("token-text").value;
  sessionStorage.setItem("statehold-token", token);
  by("token-text").value = "";
  by("main").hidden = false;
  turn();
});

(async function run() {
  for (;;) {
    if (document.visibilityState === "visible") await turn();
    await new Promise((wake) => setTimeout(wake, EVERY));
  }
})();
