// The other pages: dead letters, timers, calls, state, doctor, configuration. Each asks when it is opened.

import { ago, count, element, moment, table } from "./draw.js";
import { copyable } from "./partition.js";

const title = (text) => element("h2", { tabIndex: -1 }, text);
const quiet = (text) => element("p", { className: "quiet" }, text);
const POLL = 1000;

/** What went wrong, said aloud; with `again` there is a button that asks once more. */
function problem(text, again) {
  const button = again ? element("button", { type: "button" }, "Ask again") : null;
  button?.addEventListener("click", again);
  return element("div", { className: "trouble", role: "alert", data: { state: "waiting" } }, element("p", {}, text), button);
}

/** Ask for one thing and draw it; what `rejected` makes of an error, or that there is no answer, is shown in `place`. */
async function once(ask, path, place, draw, rejected = problem) {
  const again = () => { place.replaceChildren(quiet("Asking …")); return once(ask, path, place, draw, rejected); };
  try {
    const reply = await ask(path), told = await reply.json();
    if (reply.ok) draw(told);
    else place.replaceChildren(rejected(told.error, again));
  } catch (error) {
    place.replaceChildren(problem(`No answer: ${error.message}.`, again));
  }
}

/** A report that the service makes in the background: it is asked for until it is there. */
function report(ask, path, heading, about, drawn) {
  const result = element("div"), note = quiet(about);
  const button = element("button", { type: "button" }, "Ask again");
  let gone = false;
  async function follow(run) {
    button.disabled = true;
    try {
      for (let first = run; !gone; first = false) {
        const reply = await ask(`console/${path}${first ? "?run=1" : ""}`);
        const told = await reply.json();
        if (!told.running) {
          note.textContent = told.made ? `${about} Made ${ago(told.made)}.` : about;
          if (told.error || told.result) result.replaceChildren(...(told.error ? [problem(told.error)] : drawn(told.result)));
          break;
        }
        note.textContent = "Asking the brokers …";
        await new Promise((wake) => setTimeout(wake, POLL));
      }
    } catch (error) {
      note.textContent = about;
      result.replaceChildren(problem(`No answer: ${error.message}.`));
    } finally {
      button.disabled = false;
    }
  }
  button.addEventListener("click", () => follow(true));
  follow(true);
  return { node: element("div", {}, element("div", { className: "heading" }, title(heading), button), note, result), close: () => { gone = true; } };
}

const LEVELS = ["FAIL", "UNKNOWN", "WARN", "PASS"];

export const doctor = (ask) => report(ask, "doctor", "Doctor", "The checks of `statehold doctor`, without its clock probe, which writes.", (findings) => {
  const sorted = [...findings].sort((one, other) => LEVELS.indexOf(one.level) - LEVELS.indexOf(other.level));
  const counts = LEVELS.map((level) => [level, findings.filter((each) => each.level === level).length]).filter(([, number]) => number);
  return [quiet(counts.map(([level, number]) => `${number} ${level}`).join(" · ")),
    table("findings", ["result", "check", "about", "reason and fix"], sorted.map((each) => [
      element("span", { className: "level", data: { level: each.level } }, each.level), each.check, each.about,
      element("span", {}, each.reason, each.fix ? element("span", { className: "quiet block" }, `fix: ${each.fix}`) : null)]))];
});

export const deadLetters = (ask, status) => report(ask, "dead-letters", "Dead letters", "Keys that wait behind a record that failed, with that record.", (rows) => (rows.length
  ? [table("dead letters", ["dead letter", "key", "waiting", "time", "error"], rows.map((each) => [each.dead_letter, each.key ?? "–", count(each.dead_letters), moment(each.time), `${each.error}: ${each.text}`])),
    element("h3", {}, "Next command"), copyable(`statehold dlq show ${rows[0].dead_letter} --name ${status.name} --input ${status.input}`)]
  : [element("p", {}, "No dead letter waits.")]));

export function timers(ask) {
  const result = element("div", {}, quiet("Asking …"));
  once(ask, "console/timers", result, (told) => {
    const counts = Object.entries(told.counts);
    if (!counts.length) return result.replaceChildren(element("p", {}, "No partition that is live here has timers."));
    result.replaceChildren(quiet(counts.map(([partition, number]) => `partition ${partition}: ${count(number)}`).join(" · ")),
      table("next timers", ["due", "partition", "id"], told.rows.map((each) => [moment(each.due), `${each.partition}`, each.id])));
  });
  return { node: element("div", {}, title("Timers"), quiet("The next 100 timers of the partitions that are live on this instance."), result) };
}

export function calls(ask) {
  const result = element("div", {}, quiet("Asking …"));
  once(ask, "console/calls", result, (told) => {
    const counts = Object.entries(told.counts).flatMap(([partition, each]) => Object.entries(each).map(([name, number]) => `partition ${partition}, ${name}: ${count(number)}`));
    if (!counts.length) return result.replaceChildren(element("p", {}, "No partition that is live here has a handler with calls."));
    const dead = told.rows.some((each) => each.error);
    result.replaceChildren(quiet(counts.join(" · ")), ...(told.rows.length
      ? [table("calls", ["call", "state", "requested", "attempts", "error"], told.rows.map((each) => [each.id, each.error ? "dead" : "pending", ago(each.time), each.error ? count(each.attempts) : "–", each.error]))]
      : [element("p", {}, "No call is pending or dead.")]),
      ...(dead ? [element("h3", {}, "Next command"), copyable("statehold calls list MODULE:SERVICE --dead"), quiet("Then `statehold calls retry`, `discard` or `fail`.")] : []));
  });
  return { node: element("div", {}, title("Calls"), quiet("The first 100 durable calls of the partitions that are live on this instance: dead ones, then those that wait longest."), result) };
}

export function configuration(ask) {
  const result = element("div", {}, quiet("Asking …"));
  const only = element("input", { type: "checkbox", checked: true, id: "changed-only" });
  let rows = [];
  const draw = () => {
    const shown = rows.filter((each) => each.changed || !only.checked);
    result.replaceChildren(shown.length ? table("settings", ["setting", "value"], shown.map((each) => [element("code", {}, each.key), element("code", {}, each.value)])) : quiet("Every setting has its default."));
  };
  only.addEventListener("change", draw);
  once(ask, "console/configuration", result, (told) => { rows = told; draw(); });
  return { node: element("div", {}, title("Configuration"), quiet("The settings in force on this instance; secrets are redacted."),
    element("p", {}, only, " ", element("label", { htmlFor: "changed-only" }, "only those that differ from their defaults")), result) };
}

/** Look up one key, or the keys that begin with a prefix. */
export function lookup(ask) {
  const select = element("select", { id: "lookup-table" }), key = element("input", { id: "lookup-key", autocomplete: "off", spellcheck: false });
  const prefix = element("input", { type: "checkbox", id: "lookup-prefix" }), output = element("output", { id: "lookup-result" });
  const form = element("form", { id: "lookup-form", className: "card" }, element("label", { htmlFor: "lookup-table" }, "Table"), select,
    element("label", { htmlFor: "lookup-key" }, "Key"), element("div", { className: "row" }, key, element("button", {}, "Look up")),
    element("span", {}, prefix, " ", element("label", { htmlFor: "lookup-prefix" }, "all keys that begin with it")), output);
  const note = element("div"), about = quiet("Committed state of the partitions that this instance holds.");
  form.hidden = true;
  once(ask, "state", note, (told) => {
    note.replaceChildren(about);
    form.hidden = false;
    select.replaceChildren(...Object.entries(told.tables).map(([name, each]) => element("option", { value: name }, `${name} (${each.key})`)));
  }, quiet);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const path = `state/${encodeURIComponent(select.value)}`;
    try {
      const reply = await ask(prefix.checked ? `${path}?prefix=${encodeURIComponent(key.value)}&limit=200` : `${path}/${encodeURIComponent(key.value)}`);
      const told = await reply.json();
      output.replaceChildren(...(reply.ok ? (prefix.checked ? several(told) : one(told)) : refused(told)));
    } catch (error) {
      output.replaceChildren(problem(`No answer: ${error.message}.`));
    }
  });
  return { node: element("div", {}, title("State"), note, form) };
}

const json = (value) => element("pre", { tabIndex: 0 }, JSON.stringify(value, null, 2));
const one = (told) => [quiet(`partition ${told.partition}, as of transaction ${told.transaction}`), json(told.value)];

function several(told) {
  const more = told.truncated ? " There are more." : "", missing = told.elsewhere.length ? ` Not here: partitions ${told.elsewhere.join(", ")}.` : "";
  return [quiet(`${count(told.rows.length)} keys.${more}${missing}`),
    ...(told.rows.length ? [table("keys", ["key", "partition", "value"], told.rows.map((row) => [JSON.stringify(row.key), `${row.partition}`, element("code", {}, JSON.stringify(row.value))]))] : [])];
}

function refused(told) {
  const link = told.held_by?.url ? [element("p", {}, element("a", { href: `${told.held_by.url}/#/lookup` }, `ask ${told.held_by.url}`))] : [];
  return [element("p", { className: "trouble", data: { state: "waiting" } }, told.error), ...link];
}
