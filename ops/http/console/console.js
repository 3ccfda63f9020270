// Asks for what is new once a second, and shows it. No library, no request to anywhere else.

import { clock, element, tell } from "./draw.js";
import { Page, Tiles, events, instances, totals } from "./views.js";

const EVERY = 1000;
const KEPT = 150;
const by = (id) => document.getElementById(id);
const tiles = new Tiles();
const seen = { event: 0, tick: 0, pid: null };
const phases = new Map();
let history = [], past = [], page = null, latest = null, answered = null, token = sessionStorage.getItem("statehold-token") ?? "";

const ask = (path) => fetch(path, { headers: token ? { Authorization: `Bearer ${token}` } : {}, cache: "no-store" });

async function turn() {
  try {
    const reply = await ask(`console/data?event=${seen.event}&tick=${seen.tick}`);
    if (reply.status === 401 || reply.status === 403) return await wantToken(reply);
    if (!reply.ok) throw new Error(`the service answers ${reply.status}`);
    show(await reply.json());
  } catch (error) {
    document.body.dataset.stale = "true";
    state("bad", "no answer");
    trouble(`No answer${answered ? ` since ${clock(answered)}` : ""}: ${error.message}. What is shown may be old.`);
  }
}

async function wantToken(reply) {
  const told = await reply.json();
  by("token").hidden = reply.status === 403;
  by("main").hidden = true;
  if (reply.status === 403 || token) trouble(told.error);
  state("unknown", "locked");
}

function show(data) {
  if (seen.pid !== null && seen.pid !== data.status.pid) return location.reload(); // another process: its counters begin anew
  answered = Date.now() / 1000;
  document.body.dataset.stale = "false";
  [by("token").hidden, by("main").hidden] = [true, false];
  seen.pid = data.status.pid;
  seen.event = data.events.at(-1)?.number ?? seen.event;
  seen.tick = data.history.at(-1)?.number ?? seen.tick;
  history = [...history, ...data.history].slice(-KEPT);
  past = [...past, ...data.events].slice(-200);
  latest = data;
  head(data);
  totals(data, sumOfRates(data));
  tiles.update(data, series);
  events(by("events"), data.events);
  instances(data);
  speak(data.status.partitions);
  if (data.queries && by("lookup").hidden) offerLookup();
  if (page) page.update(of(page.number), series(page.number), data.events);
}

function head(data) {
  const { status, live, ready } = data;
  tell(by("service"), status.service);
  tell(by("about"), `reads ${status.input} · instance ${status.instance}`);
  tell(by("version"), `statehold ${status.version} · pid ${status.pid} · brokers ${status.brokers}`);
  document.title = `${ready[0] ? "" : "! "}${status.service} · statehold`;
  const failed = status.partitions.some((each) => each.phase === "failed");
  if (ready[0]) state("ready", status.partitions.length ? "ready" : "idle");
  else if (!live[0]) state("bad", "not live");
  else state(failed ? "bad" : "waiting", "not ready");
  trouble(ready[0] ? "" : few(ready[1]), failed || !live[0] || status.outage ? "bad" : "waiting");
}

const few = (sentences) => [...sentences.slice(0, 2), ...(sentences.length > 2 ? [`and ${sentences.length - 2} more`] : [])].join(" · ");

function state(name, text) {
  by("verdict").dataset.state = name;
  tell(by("verdict").lastElementChild, text);
}

function trouble(text, kind = "bad") {
  by("trouble").hidden = !text;
  by("trouble").dataset.state = kind;
  tell(by("trouble"), text);
}

/** Lag, rate and mailbox of one partition over the kept samples; null where nothing is known. */
function series(number) {
  const rows = history.map((sample) => [sample.time, ...(sample.partitions[number] ?? [null, null, null])]);
  const rate = rows.map(([time, , records], at) => {
    const [before, , earlier] = rows[at - 1] ?? [];
    if (records === null) return null;
    return earlier === undefined || earlier === null || records < earlier ? 0 : (records - earlier) / (time - before);
  });
  return { lag: rows.map((row) => row[1]), rate, mailbox: rows.map((row) => row[3]) };
}

const sumOfRates = (data) => data.status.partitions.reduce((sum, each) => sum + (series(each.partition).rate.at(-1) ?? 0), 0);
const of = (number) => latest?.status.partitions.find((each) => each.partition === number);

/** A change of phase is said aloud, once. */
function speak(partitions) {
  const said = partitions.filter((each) => phases.has(each.partition) && phases.get(each.partition) !== each.phase)
    .map((each) => `partition ${each.partition} is ${each.phase}`);
  phases.clear();
  partitions.forEach((each) => phases.set(each.partition, each.phase));
  if (said.length) tell(by("spoken"), said.join(", "));
}

function route() {
  const number = /^#\/partition\/(\d+)$/.exec(location.hash)?.[1];
  by("overview").hidden = number !== undefined;
  by("partition").hidden = number === undefined;
  page = number === undefined ? null : new Page(Number(number), past);
  by("partition").replaceChildren(...(page ? [page.node] : []));
  if (page) {
    page.update(of(page.number), series(page.number), []);
    page.node.querySelector("h2").focus({ preventScroll: true });
  }
}

async function offerLookup() {
  by("lookup").hidden = false;
  const reply = await ask("state");
  if (!reply.ok) return;
  const { tables } = await reply.json();
  by("lookup-table").replaceChildren(...Object.entries(tables).map(([name, { key }]) => element("option", { value: name }, `${name} (${key})`)));
}

async function lookUp(event) {
  event.preventDefault();
  const [table, key] = [by("lookup-table").value, by("lookup-key").value];
  const reply = await ask(`state/${encodeURIComponent(table)}/${encodeURIComponent(key)}`);
  const told = await reply.json();
  const lines = [element("pre", {}, JSON.stringify(reply.ok ? told.value : told.error, null, 2))];
  if (reply.ok) lines.unshift(element("p", { className: "quiet" }, `partition ${told.partition}, as of transaction ${told.transaction}`));
  if (told.held_by?.url) lines.push(element("p", {}, element("a", { href: `${told.held_by.url}/` }, `ask ${told.held_by.url}`)));
  by("lookup-result").replaceChildren(...lines);
}

by("token").addEventListener("submit", (event) => {
  event.preventDefault();
  token = by("token-text").value;
  sessionStorage.setItem("statehold-token", token);
  by("token-text").value = "";
  turn();
});
by("lookup-form").addEventListener("submit", lookUp);
window.addEventListener("hashchange", route);

(async function run() {
  route();
  for (;;) {
    if (document.visibilityState === "visible") await turn();
    await new Promise((wake) => setTimeout(wake, EVERY));
  }
})();
