"use strict";
// Everything is drawn by the server. This keeps pages fresh, sends decisions, and knows keys.
// Text of models, tools and people only ever becomes text nodes.

const one = (sel, from = document) => from.querySelector(sel);
const all = (sel, from = document) => [...from.querySelectorAll(sel)];
const ours = window.trustedTypes
  ? trustedTypes.createPolicy("inbox", { createHTML: (html) => html })
  : { createHTML: (html) => html };

function toast(words) {
  const at = one("#toast");
  at.textContent = words;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => { at.textContent = ""; }, 6000);
}

async function send(path, body, headers = {}) {
  const answer = await fetch(path, {
    method: "POST", body: JSON.stringify(body), cache: "no-store",
    headers: { "Content-Type": "application/json", "X-Inbox": "1", ...headers },
  });
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw Object.assign(new Error(told.detail || `It was refused (${answer.status}).`), { status: answer.status, told });
  return told;
}

// -- times -----------------------------------------------------------------------------------------

const SPANS = [[86400e3, "day"], [3600e3, "hour"], [60e3, "minute"], [1e3, "second"]];
const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto" });

function since(ms) {
  const span = ms - Date.now();
  for (const [size, name] of SPANS) if (Math.abs(span) >= size) return relative.format(Math.round(span / size), name);
  return "now";
}

function tellTimes(from = document) {
  for (const time of all("time[data-ms]", from)) {
    const at = Number(time.dataset.ms);
    time.title = new Date(at).toLocaleString();
    time.textContent = since(at);
  }
  for (const time of all("time[data-clock]", from)) {
    const at = new Date(Number(time.dataset.clock)), isNear = Math.abs(at - Date.now()) < 12 * 3600e3;
    time.title = at.toLocaleString();
    time.textContent = at.toLocaleString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...(isNear ? {} : { day: "numeric", month: "short" }) });
  }
  for (const left of all("[data-deadline]", from)) left.classList.toggle("warn", Number(left.dataset.deadline) - Date.now() < 15 * 60e3);
  const ask = one("[data-ask]");
  const rerun = ask && one("[data-verb=rerun]", ask);
  if (rerun) rerun.disabled = Number(ask.dataset.unlock) > Date.now();
}

// -- fresh pages -----------------------------------------------------------------------------------

let fetching = null, again = false;

async function freshen() {
  if (fetching) { again = true; return fetching; }
  fetching = (async () => {
    do {
      again = false;
      const answer = await fetch(location.href, { cache: "no-store", headers: { Accept: "text/html" } });
      if (answer.status === 401) { location.reload(); return; }
      if (!answer.ok) { live("off", "store away"); return; }
      const fresh = new DOMParser().parseFromString(ours.createHTML(await answer.text()), "text/html");
      for (const part of all("[data-live]")) swap(part, one(`[data-live="${part.dataset.live}"]`, fresh));
    } while (again);
  })().finally(() => { fetching = null; });
  return fetching;
}

function swap(part, fresh) {
  if (!fresh || one("dialog[open]")) return; // never under somebody's hands
  if (part.hasAttribute("data-append")) { append(part, fresh); return; }
  if (part.isEqualNode(fresh) || part.contains(document.activeElement) && document.activeElement.matches("input:not([data-pick]),textarea")) return;
  const key = one("tr.here", part)?.dataset.key;
  const focused = part.contains(document.activeElement) && document.activeElement.closest("[data-key]")?.dataset.key;
  const picked = new Set(picks(part)), onBox = document.activeElement.matches("[data-pick]");
  const opened = all("details", part).map((each) => each.open);
  part.replaceWith(fresh);
  if (opened.length === all("details", fresh).length) all("details", fresh).forEach((each, at) => { each.open = opened[at]; });
  if (key) one(`[data-key="${CSS.escape(key)}"]`, fresh)?.classList.add("here");
  if (focused) one(`[data-key="${CSS.escape(focused)}"] ${onBox ? "[data-pick]" : ".row-link"}`, fresh)?.focus();
  for (const box of all("[data-pick]", fresh)) box.checked = picked.has(box.value);
  tellPicked();
  tellTimes(fresh);
  watchReading();
}

function append(part, fresh) {
  const known = new Set(all("[data-key]", part).map((row) => row.dataset.key));
  for (const row of all("tbody > [data-key]", fresh)) {
    if (known.has(row.dataset.key)) continue;
    row.classList.add("fresh");
    one("tbody", part).append(row);
    tellTimes(row);
  }
}

// -- streams: one of the lists for all pages of a browser, one of a run for its page -----------------

function live(state, words) {
  const at = one("#live-state");
  if (!at) return;
  at.className = `live ${state}`;
  one(".live-word", at).textContent = words;
}

function follow(url, hear) {
  let source, polling, late = 0;
  const open = () => {
    source = new EventSource(url);
    source.onopen = () => { live("on", "live"); clearInterval(polling); polling = null; if (late) freshen(); late = 0; };
    source.onerror = () => {
      late += 1;
      live("off", "not live");
      if (source.readyState === EventSource.CLOSED && !polling) polling = setInterval(() => { freshen(); if (++late % 3 === 0) { source.close(); open(); } }, 5000);
    };
    hear(source);
  };
  open();
  return { close: () => { source.close(); clearInterval(polling); } };
}

function followLists() {
  const channel = new BroadcastChannel("fsm-inbox");
  let last = null; // what the page that leads heard last
  const take = (told, isFirst = false) => {
    const badge = one("#open-count");
    if (badge && told.open !== undefined) { badge.textContent = told.open; badge.hidden = !told.open; }
    // What is heard first is what this page was drawn from, or nearly; all later ones say more.
    if (!isFirst && one('[data-live-source="lists"]')) freshen();
    live("on", "live");
  };
  channel.onmessage = ({ data }) => {
    if (data.hello) { if (last) channel.postMessage({ ...last, isFirst: true }); }
    else take(data, data.isFirst);
  };
  channel.postMessage({ hello: true });
  const lead = () => new Promise(() => {
    const tell = (told) => { channel.postMessage(told); take(told, last === null && !told.anew); last = told; };
    follow("/v1/inbox/events", (source) => {
      source.addEventListener("changed", (event) => tell(JSON.parse(event.data)));
      source.addEventListener("resync", (event) => tell({ ...last, ...JSON.parse(event.data), anew: true }));
    });
  });
  // The page that holds the lock listens for the others; when it goes, the next one does.
  navigator.locks ? navigator.locks.request("fsm-inbox-stream", lead) : lead();
}

function followRun(article) {
  let timer;
  const soon = () => { clearTimeout(timer); timer = setTimeout(freshen, 120); };
  const seq = article.dataset.seq;
  const stream = follow(`/v1/runs/${article.dataset.run}/events?after=${seq}`, (source) => {
    source.addEventListener("entry", (event) => { settle(JSON.parse(event.data)); soon(); });
    source.addEventListener("parked", soon);
    source.addEventListener("live", (event) => said(JSON.parse(event.data)));
    source.addEventListener("resync", () => location.reload());
    source.addEventListener("end", () => { stream.close(); soon(); live("on", "ended"); });
  });
  addEventListener("pagehide", () => stream.close());
}

function attemptOf(number) {
  const box = one("[data-attempts]");
  let found = one(`[data-attempt="${number}"]`, box);
  if (!found) {
    for (const old of all(".attempt:not(.void)", box)) void_(old);
    found = document.createElement("div");
    found.className = "attempt";
    found.dataset.attempt = number;
    const title = document.createElement("p");
    title.className = "soft";
    title.textContent = `Attempt ${number}: not on record yet`;
    found.append(title);
    box.append(found);
  }
  one("[data-live-text]").hidden = false;
  return found;
}

function void_(attempt) {
  attempt.classList.add("void");
  one("p", attempt).textContent = `Attempt ${attempt.dataset.attempt}: taken back. No whole reply came, and what it said is void`;
}

function said(event) {
  if (!one("[data-attempts]")) return;
  const attempt = attemptOf(event.attempt);
  if (event.channel === "retracted") { void_(attempt); return; }
  const name = event.channel === "progress" ? `progress ${event.call_id}` : event.channel;
  let place = all("pre", attempt).find((each) => each.dataset.channel === name);
  if (!place) {
    place = document.createElement("pre");
    place.tabIndex = 0;
    place.dataset.channel = name;
    place.className = event.channel;
    attempt.append(place);
  }
  if (event.channel === "progress") place.textContent = "";
  place.append(event.text);
}

function settle(entry) {
  const replied = entry.facts.some((fact) => fact.kind === "replied" || fact.kind === "model_failed");
  const began = entry.facts.find((fact) => ["began", "reserved"].includes(fact.kind));
  const died = entry.facts.some((fact) => fact.kind === "resumed" && fact.is_takeover);
  const box = one("[data-attempts]");
  if (!box) return;
  if (died || began) for (const old of all(".attempt:not(.void)", box)) if (!began || Number(old.dataset.attempt) < began.attempt) void_(old);
  if (replied) for (const done of all(".attempt:not(.void)", box)) done.remove(); // the entry has all of it
  one("[data-live-text]").hidden = !box.children.length;
}

// -- deciding ----------------------------------------------------------------------------------------

const WORDS = {
  approve: ["Approve and run", "It runs with exactly these arguments."],
  edit: ["Approve with edits", "It runs with the arguments that you write here, and with no others."],
  reject: ["Reject", "It does not run. The model is told why."],
  answer: ["Answer", "The model is given your words as the result. Nothing runs."],
  happened: ["It happened", "The call counts as done. Say what came of it, if you know."],
  rerun: ["Run it now", "You have looked, and it did not happen. It is started once more."],
  fail: ["Nobody knows", "The model is told that nobody knows. Nothing runs."],
};
const FIELDS = { approve: ["standing"], edit: ["args"], reject: ["reason"], answer: ["answer"], happened: ["answer"], rerun: [], fail: ["reason"] };

function isUnread(ask) { return all("[data-must-see]", ask).some((each) => !each.dataset.seen); }

function watchReading() {
  const ask = one("[data-ask]");
  if (!ask) return;
  const judge = () => {
    const unread = isUnread(ask);
    const note = one("[data-unread]", ask);
    if (note) note.hidden = !unread;
    for (const verb of ["approve", "rerun"]) {
      const button = one(`[data-verb=${verb}]`, ask);
      if (button) button.disabled = unread || verb === "rerun" && Number(ask.dataset.unlock) > Date.now();
    }
  };
  for (const each of all("[data-must-see]", ask)) {
    const pre = one("pre", each);
    const look = () => { if (each.open && pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 4) { each.dataset.seen = "1"; judge(); } };
    each.addEventListener("toggle", look);
    pre.addEventListener("scroll", look);
  }
  judge();
}

function needsHash(ask, verb) { return ["high", "in doubt"].includes(ask.dataset.risk) && ["approve", "edit", "rerun"].includes(verb); }

function openDecision(verb, given) {
  const ask = one("[data-ask]");
  const button = ask && one(`[data-verb=${verb}]`, ask);
  if (!button || button.disabled) return;
  const dialog = one("dialog#decide");
  const fields = [...FIELDS[verb]];
  if (needsHash(ask, verb)) fields.push("hash");
  if (given !== undefined || verb === "approve" && !needsHash(ask, verb)) { decide(ask, verb, { answer: given }); return; }
  one("#decide-title", dialog).textContent = `${WORDS[verb][0]}: ${ask.dataset.tool}`;
  one("[data-what]", dialog).textContent = WORDS[verb][1];
  one("[data-yes]", dialog).textContent = WORDS[verb][0];
  one("[data-reason-use]", dialog).textContent = verb === "reject" ? "(needed; the model reads it)" : "(the model reads it)";
  one("[data-problem]", dialog).textContent = "";
  for (const field of all("[data-field]", dialog)) field.hidden = !fields.includes(field.dataset.field);
  if (verb === "edit") one("#args", dialog).value = one("template#arguments", ask).content.textContent;
  one("#hash", dialog).value = "";
  dialog.dataset.verb = verb;
  dialog.returnTo = button;
  dialog.showModal();
  one("[data-field]:not([hidden]) textarea, [data-field]:not([hidden]) input", dialog)?.focus();
}

function confirmDecision(dialog) {
  const ask = one("[data-ask]"), verb = dialog.dataset.verb;
  const problem = (words, sel) => { one("[data-problem]", dialog).textContent = words; one(sel, dialog).focus(); };
  const body = {};
  if (FIELDS[verb].includes("reason")) body.reason = one("#reason", dialog).value.trim();
  if (verb === "reject" && !body.reason) return problem("Give a reason: the model reads it.", "#reason");
  if (FIELDS[verb].includes("answer")) body.answer = one("#answer", dialog).value;
  if (verb === "answer" && !body.answer.trim()) return problem("Write what the model should be told.", "#answer");
  if (verb === "happened" && !body.answer.trim()) delete body.answer;
  if (verb === "edit") {
    try { body.args = JSON.parse(one("#args", dialog).value); } catch (error) { return problem(`This is not JSON: ${error.message}`, "#args"); }
    if (body.args === null || typeof body.args !== "object" || Array.isArray(body.args)) return problem("The arguments are an object, such as {\"amount\": 10}.", "#args");
  }
  if (verb === "approve" && one("#standing", dialog).checked) body.standing = true;
  if (needsHash(ask, verb)) {
    const typed = one("#hash", dialog).value.trim().toLowerCase();
    if (typed.length < 4 || !ask.dataset.hash.startsWith(typed)) return problem("These are not the first characters of the hash that is shown.", "#hash");
  }
  dialog.close();
  return decide(ask, verb, body);
}

async function decide(ask, verb, more) {
  const saving = one("[data-saving]", ask);
  const buttons = all("[data-verb]", ask);
  const were = buttons.map((each) => each.disabled);
  for (const each of buttons) each.disabled = true;
  saving.textContent = "Saving…";
  // One id for as long as the page does not know what came of it: a second try is the same decision.
  decide.id ||= crypto.randomUUID?.() || String(Math.random()).slice(2);
  try {
    const told = await send(`/v1/approvals/${ask.dataset.id}/decision`, { verb, decision_id: `${decide.id}-${verb}`, args_sha256: ask.dataset.hash, ...more }, { "If-Match": ask.dataset.etag });
    decide.id = null;
    saving.textContent = "";
    toast(told.missing ? `Recorded: ${told.missing} more needed.` : "Recorded.");
  } catch (error) {
    saving.textContent = error.message;
    buttons.forEach((each, at) => { each.disabled = were[at]; });
    if (error.status) decide.id = null;
    toast(error.message);
  }
  await freshen();
}

async function act(button, path, body, words) {
  button.disabled = true;
  try { await send(path, body); toast(words); } catch (error) { toast(error.message); }
  button.disabled = false;
  await freshen();
}

// -- several runs at once ----------------------------------------------------------------------------

function picks(from = document) { return all("[data-pick]:checked", from).map((box) => box.value); }

function tellPicked() {
  const bar = one("[data-picked]"), count = picks().length;
  if (!bar) return;
  bar.hidden = !count;
  one("[data-picked-count]", bar).textContent = `${count} selected`;
}

function openCancelMany() {
  const dialog = one("dialog#cancel-many"), ids = picks();
  one("[data-picked-ids]", dialog).replaceChildren(...ids.map((id) => Object.assign(document.createElement("li"), { className: "mono", textContent: id })));
  one("[data-many-word]", dialog).textContent = `cancel ${ids.length}`;
  one("#many-word", dialog).value = one("[data-problem]", dialog).textContent = "";
  dialog.ids = ids; // what is listed is what is ended, whatever is selected by then
  dialog.showModal();
  one("#many-reason", dialog).focus();
}

async function cancelMany(dialog) {
  if (one("#many-word", dialog).value.trim() !== one("[data-many-word]", dialog).textContent) {
    one("[data-problem]", dialog).textContent = "These are not the words.";
    one("#many-word", dialog).focus();
    return;
  }
  dialog.close();
  const refused = [];
  for (const id of dialog.ids) {
    try { await send(`/v1/runs/${id}/cancel`, { reason: one("#many-reason", dialog).value }); } catch (error) { refused.push(error.message); }
  }
  const asked = dialog.ids.length - refused.length;
  toast([`${asked} asked to end at their next commit points.`, ...refused.slice(0, 3)].join(" "));
  for (const box of all("[data-pick]")) box.checked = false;
  tellPicked();
  await freshen();
}

// -- forks -------------------------------------------------------------------------------------------

function openFork(button) {
  const dialog = one("dialog#fork"), again = one("[data-fork-again]", dialog);
  one("[data-fork-at]", dialog).textContent = dialog.dataset.at = button.dataset.fork;
  again.textContent = `Has happened since, and may happen a second time: ${button.dataset.again}.`;
  again.hidden = !button.dataset.again;
  one("#fork-sure", dialog).checked = false;
  one("[data-problem]", dialog).textContent = "";
  // One id for as long as the dialog is open: a second try is the same fork.
  dialog.dataset.id = `r-${[...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
  dialog.showModal();
  one("#fork-say", dialog).focus();
}

async function fork(dialog) {
  const problem = one("[data-problem]", dialog);
  if (!one("#fork-sure", dialog).checked) { problem.textContent = "Say that it may happen anew."; one("#fork-sure", dialog).focus(); return; }
  const body = { at: Number(dialog.dataset.at), run_id: dialog.dataset.id, say: one("#fork-say", dialog).value };
  try {
    const told = await send(`/v1/runs/${one("[data-run]").dataset.run}/fork`, body);
    location.assign(`/runs/${told.run_id}`);
  } catch (error) { problem.textContent = error.message; }
}

// -- what is clicked, sent and typed -----------------------------------------------------------------

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const ask = one("[data-ask]"), run = one("[data-run]")?.dataset.run;
  if (button.dataset.verb) openDecision(button.dataset.verb, button.dataset.answer);
  else if (button.dataset.act) act(button, `/v1/approvals/${ask.dataset.id}/${button.dataset.act}`, {}, button.dataset.act === "claim" ? "Claimed: others see that you look at it." : "Released.");
  else if ("no" in button.dataset) button.closest("dialog").close();
  else if ("logout" in button.dataset) send("/logout", {}).then(() => location.assign("/inbox"));
  else if ("resume" in button.dataset) act(button, `/v1/runs/${run}/resume`, {}, "A worker looks at it next.");
  else if (button.dataset.revoke) act(button, `/v1/runs/${run}/consents/${button.dataset.revoke}/revoke`, {}, "Taken back.");
  else if (button.dataset.fork) openFork(button);
  else if ("cancelMany" in button.dataset) openCancelMany();
  else if ("pickNone" in button.dataset) { for (const box of all("[data-pick]")) box.checked = false; tellPicked(); }
  else if ("cancel" in button.dataset) one("dialog#cancel").showModal();
  else if (button.dataset.copy) navigator.clipboard?.writeText(button.dataset.copy).then(() => toast("Copied."), () => toast(button.dataset.copy));
});

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-pick]")) tellPicked();
});

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (form.matches("[data-decide]")) { event.preventDefault(); confirmDecision(form.closest("dialog")); }
  else if (form.matches("[data-comment]")) {
    event.preventDefault();
    const text = one("#comment", form).value;
    try { await send(`/v1/approvals/${one("[data-ask]").dataset.id}/comment`, { text }); form.reset(); document.activeElement.blur(); await freshen(); } catch (error) { toast(error.message); }
  } else if (form.matches("[data-cancel-form]")) {
    event.preventDefault();
    const run = one("[data-run]").dataset.run;
    if (one("#cancel-id", form).value.trim() !== run) { one("[data-problem]", form).textContent = "This is not the run's id."; return; }
    form.closest("dialog").close();
    act(one("[data-cancel]"), `/v1/runs/${run}/cancel`, { reason: one("#cancel-reason", form).value }, "It ends at its next commit point.");
  } else if (form.matches("[data-fork-form]")) {
    event.preventDefault();
    fork(form.closest("dialog"));
  } else if (form.matches("[data-cancel-many-form]")) {
    event.preventDefault();
    cancelMany(form.closest("dialog"));
  } else if (form.matches("[data-login]")) {
    event.preventDefault();
    login(one("#token", form).value.trim()).catch((error) => { one("[data-problem]", form).textContent = error.message; });
  } else if (form.matches("[data-explain]")) {
    event.preventDefault();
    const at = one("[data-verdict]");
    try {
      const verdict = await send("/v1/policies/explain", { agent: one("#x-agent").value, tool: one("#x-tool").value, args: JSON.parse(one("#x-args").value) });
      at.textContent = verdict.asks ? `A person would be asked: ${verdict.reason}` : "Nobody would be asked.";
    } catch (error) { at.textContent = error.message; }
  }
});

async function login(token) {
  await send("/login", { token });
  location.replace(location.pathname === "/login" ? "/inbox" : location.pathname + location.search);
}

document.addEventListener("close", (event) => { if (event.target.matches("dialog#decide")) (event.target.returnTo?.isConnected ? event.target.returnTo : one("main")).focus(); }, true);

let going = false;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input:not([data-pick]), textarea, select, dialog[open]")) return;
  if (going) { going = false; const to = { i: "/inbox", r: "/runs" }[event.key]; if (to) location.assign(to); return; }
  const rows = all("[data-rows] tbody tr");
  const here = rows.findIndex((row) => row.classList.contains("here"));
  const goTo = (at) => {
    rows[here]?.classList.remove("here");
    rows[at].classList.add("here");
    one(".row-link", rows[at]).focus();
  };
  switch (event.key) {
    case "j": if (rows.length) goTo(Math.min(here + 1, rows.length - 1)); break;
    case "k": if (rows.length) goTo(Math.max(here - 1, 0)); break;
    case "a": openDecision("approve"); break;
    case "e": openDecision("edit"); break;
    case "r": openDecision("reject"); break;
    case "x": if (rows[here]) one("[data-pick]", rows[here])?.click(); break;
    case "c": one("[data-act]")?.click(); break;
    case "g": going = true; break;
    case "/": one("[data-search]")?.focus(); break;
    case "?": one("dialog#keys").showModal(); break;
    default: return;
  }
  event.preventDefault();
});

// -- begin -------------------------------------------------------------------------------------------

tellTimes();
setInterval(tellTimes, 15e3);
watchReading();
if (document.body.dataset.who) {
  followLists();
  const run = one("[data-run]");
  if (run && !run.hasAttribute("data-over")) followRun(run);
} else if (location.hash.length > 20) {
  const token = location.hash.slice(1);
  history.replaceState(null, "", location.pathname + location.search);
  login(token).catch((error) => { const at = one("[data-problem]"); if (at) at.textContent = error.message; });
}
