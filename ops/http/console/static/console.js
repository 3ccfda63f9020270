// Asks for what is new once a second, and shows it. No library, no request to anywhere else.

import { spanChoice } from "./charts.js";
import { clock, element, tell } from "./draw.js";
import { InstanceCharts, OthersHistory, Tiles, group, instances, totals, verdict } from "./overview.js";
import { calls, configuration, deadLetters, doctor, lookup, timers } from "./pages.js";
import { PartitionPage, copyable, nextCommand } from "./partition.js";
import { Timeline } from "./timeline.js";

const EVERY = 1000;
const KEPT = 150;
const PAGES = { doctor, "dead-letters": deadLetters, timers, calls, lookup, configuration };
const by = (id) => document.getElementById(id);
const tiles = new Tiles(), others = new OthersHistory(), charts = new InstanceCharts(), timeline = new Timeline("events of this instance");
const seen = { event: 0, tick: 0, pid: null };
const phases = new Map();
let history = [], past = [], partitions = [], latest = null, answered = null, span = 300, token = sessionStorage.getItem("statehold-token") ?? "";
/** The page that is open: one partition's, another one, or null for the overview. */
let page = null;

const ask = (path) => fetch(path, { headers: token ? { Authorization: `Bearer ${token}` } : {}, cache: "no-store" });

async function turn() {
  try {
    const asked = span;
    const reply = await ask(`console/data?event=${seen.event}&tick=${seen.tick}&span=${asked}`);
    if (reply.status === 401 || reply.status === 403) return await wantToken(reply);
    if (!reply.ok) throw new Error(`the service answers ${reply.status}`);
    const data = await reply.json();
    if (asked === span) show(data);
  } catch (error) {
    document.body.dataset.stale = "true";
    state("bad", "no answer");
    trouble([`No answer${answered ? ` since ${clock(answered)}` : ""}: ${error.message}. What is shown may be old.`], "bad");
  }
}

async function wantToken(reply) {
  const told = await reply.json();
  by("token").hidden = reply.status === 403;
  by("main").hidden = by("views").hidden = true;
  if (reply.status === 403 || token) trouble([told.error], "bad");
  state("unknown", "locked");
}

function show(data) {
  if (seen.pid !== null && seen.pid !== data.status.pid) return location.reload(); // another process: its counters begin anew
  const first = latest === null;
  answered = Date.now() / 1000;
  document.body.dataset.stale = "false";
  [by("token").hidden, by("main").hidden, by("views").hidden] = [true, false, false];
  seen.pid = data.status.pid;
  seen.event = data.events.at(-1)?.number ?? seen.event;
  seen.tick = data.history.at(-1)?.number ?? seen.tick;
  history = [...history, ...data.history].slice(-KEPT);
  past = [...past, ...data.events].slice(-200);
  latest = data;
  partitions = group(data);
  others.note(partitions);
  head(data);
  totals(data, partitions, rates());
  tiles.update(partitions, (each) => (each.here ? series(each.partition).rate : others.of(each.partition).map((sample) => sample.rate)));
  charts.update(history.map((sample) => sample.time), series, data.status.partitions.map((each) => each.partition), span);
  timeline.add(data.events);
  instances(data);
  speak(data.status.partitions);
  if (first && !page) route();
  updatePartition(data.events);
}

function head(data) {
  const { status } = data;
  const [kind, words, why] = verdict(data, partitions);
  tell(by("service"), status.service);
  tell(by("about"), `reads ${status.input} · instance ${status.instance}`);
  tell(by("version"), `statehold ${status.version} · pid ${status.pid} · brokers ${status.brokers}`);
  document.title = `${kind === "ready" ? "" : "! "}${status.service} · statehold`;
  state(kind, words);
  trouble(why, kind, status.outage ? null : partitions.find((each) => each.phase === "failed"));
}

function state(name, text) {
  by("verdict").dataset.state = name;
  tell(by("verdict").lastElementChild, text);
}

/** At most two sentences; for a failed partition also its next command. */
function trouble(sentences, kind, failed) {
  const told = JSON.stringify([sentences, kind, failed?.partition]);
  by("trouble").hidden = !sentences.length;
  if (by("trouble").dataset.told === told) return;
  by("trouble").dataset.told = told;
  by("trouble").dataset.state = kind;
  const lines = sentences.slice(0, 2).map((text) => element("p", {}, text));
  if (sentences.length > 2) lines.push(element("p", {}, `and ${sentences.length - 2} more`));
  if (failed) lines.push(copyable(nextCommand(failed, latest.status.name)), element("p", {}, element("a", { href: `#/partition/${failed.partition}` }, `What to do about partition ${failed.partition}`)));
  by("trouble").replaceChildren(...lines);
}

/** Lag, rate and mailbox of one partition over the kept samples; null where nothing is known. */
function series(number) {
  const rows = history.map((sample) => [sample.time, ...(sample.partitions[number] ?? [null, null, null])]);
  const rate = rows.map(([time, , records], at) => {
    const [before, , earlier] = rows[at - 1] ?? [];
    if (records === null) return null;
    return earlier === undefined || earlier === null || records < earlier ? null : (records - earlier) / (time - before);
  });
  return { times: rows.map((row) => row[0]), lag: rows.map((row) => row[1]), rate, mailbox: rows.map((row) => row[3]) };
}

function rates() {
  const last = (each) => (each.here ? series(each.partition).rate : others.of(each.partition).map((sample) => sample.rate)).findLast((value) => value !== null);
  return partitions.reduce((sum, each) => sum + (last(each) ?? 0), 0);
}

/** A change of phase is said aloud, once. */
function speak(mine) {
  const said = mine.filter((each) => phases.has(each.partition) && phases.get(each.partition) !== each.phase)
    .map((each) => `partition ${each.partition} is ${each.phase}`);
  phases.clear();
  mine.forEach((each) => phases.set(each.partition, each.phase));
  if (said.length) tell(by("spoken"), said.join(", "));
}

function setSpan(value) {
  [span, seen.tick, history] = [value, 0, []];
  document.querySelectorAll("select").forEach((select) => { if (select.ariaLabel?.startsWith("time that")) select.value = value; });
  turn();
}

function updatePartition(events) {
  if (page instanceof PartitionPage) page.update(partitions.find((each) => each.partition === page.number), series(page.number), events, latest.status.name, span);
}

function route() {
  const number = /^#\/partition\/(\d+)$/.exec(location.hash)?.[1], name = /^#\/([\w-]+)$/.exec(location.hash)?.[1];
  page?.close?.();
  page = null;
  if (number !== undefined) page = new PartitionPage(Number(number), past, ask, span, setSpan);
  else if (Object.hasOwn(PAGES, name ?? "") && latest) page = PAGES[name](ask, latest.status);
  by("overview").hidden = page !== null;
  by("page").hidden = page === null;
  by("page").replaceChildren(...(page ? [page.node] : []));
  for (const link of by("views").children) {
    if (link.getAttribute("href") === (page ? location.hash : "#/")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (latest) updatePartition([]);
  page?.node.querySelector("h2").focus({ preventScroll: true });
}

by("token").addEventListener("submit", (event) => {
  event.preventDefault();
  token = by("token-text").value;
  sessionStorage.setItem("statehold-token", token);
  by("token-text").value = "";
  turn();
});
by("overview-span").append(spanChoice(span, setSpan));
by("events-filter").append(timeline.filter);
by("events").append(timeline.node);
window.addEventListener("hashchange", route);

(async function run() {
  route();
  for (;;) {
    if (document.visibilityState === "visible") await turn();
    await new Promise((wake) => setTimeout(wake, EVERY));
  }
})();
