// Keeps an open page up to date and adds keys. The server renders everything: this script
// changes counts and times in place, and replaces the list by a new one from the server
// only when the reader asks for it.
"use strict";

const body = document.body;
const texts = JSON.parse(body.dataset.texts);
const say = (key, n) => {
  const forms = texts[key].split(" | ");
  return (n === 1 ? forms[0] : forms.at(-1)).replace("{0}", n?.toLocaleString("en"));
};
const element = (name, text, className = "") => Object.assign(document.createElement(name), { textContent: text, className });
const setText = (node, text) => { if (node && node.textContent !== text) node.textContent = text; };

// A page from the browser's cache does not tell what time it is.
const load = performance.getEntriesByType("navigation")[0];
const isNew = body.dataset.now && load && load.transferSize > load.encodedBodySize;
let clockOffset = isNew ? Date.now() - Date.parse(body.dataset.now) : 0; // ms by which this clock is ahead of the server's

// age formats the time since an event, as age in age.go does.
function age(ms) {
  const s = Math.floor(ms / 1000);
  if (s < 5) return say("age_now");
  if (s < 60) return say("age_s", s);
  if (s < 3600) return say("age_min", Math.floor(s / 60));
  if (s < 48 * 3600) return say("age_h", Math.floor(s / 3600));
  return say("age_days", Math.floor(s / 86400));
}

const clock = (date) => date.toLocaleString([], { ...(date.toDateString() === new Date().toDateString() ? {} : { day: "numeric", month: "short" }), hour: "2-digit", minute: "2-digit" });

function updateTimes() {
  const now = Date.now() - clockOffset;
  for (const t of document.querySelectorAll("time")) {
    const date = new Date(t.dateTime);
    if ("age" in t.dataset) {
      setText(t, age(now - date));
      if (!t.title.includes("(")) t.title += ` (${clock(date)})`;
    } else if ("clock" in t.dataset) setText(t, clock(date));
  }
}

// A stamp is a time element that updateTimes fills.
function stamp(at, kind) {
  const t = document.createElement("time");
  t.dateTime = at;
  t.title = new Date(at).toUTCString();
  t.dataset[kind] = "";
  return t;
}

const state = document.getElementById("state");
const waiting = document.getElementById("waiting");
const list = document.getElementById("list");
const emptyEvery = 10000; // ms between two refreshes of an empty page
const announceEvery = 60000; // ms between two announcements of new links
const said = element("p", "", "unseen");
const fresh = new Set(); // ids of links that entered and are not shown
let announced = -Infinity;
let lastEvent = Date.now();
let offline = false;

const rows = () => [...document.querySelectorAll(".link")];
const row = (id) => document.querySelector(`.link[data-id="${id}"]`);

function updated(at) {
  lastEvent = Date.now();
  clockOffset = lastEvent - Date.parse(at);
  document.getElementById("updated").replaceChildren(`${say("updated")} `, stamp(at, "age"));
}

function showState(s) {
  const line = state.querySelector(".now");
  line.className = `now ${s.level}`;
  if ("gaps" in s) document.getElementById("gapped").hidden = s.gaps === 0;
  const incomplete = document.getElementById("incomplete");
  if (incomplete && "gaps" in s) incomplete.hidden = !("complete_since" in s);
  document.getElementById("word").replaceChildren(s.text, ...(s.since ? [" ", stamp(s.since, "clock")] : []));
  updateTimes();
}

function setOffline() {
  if (offline) return;
  offline = true;
  showState({ level: "bad", text: say("offline"), since: new Date(lastEvent - clockOffset).toISOString() });
}

// inPlace changes a row that keeps its height: a longer number could need another line.
function inPlace(li, change) {
  const height = li.getBoundingClientRect().height;
  change();
  if (li.getBoundingClientRect().height !== height) li.style.height = `${height}px`;
}

addEventListener("resize", () => { for (const li of rows()) li.style.height = ""; });

function setCount(link) {
  const li = row(link.id);
  const count = li?.querySelector("[data-count]");
  const text = link.sharers.toLocaleString("en");
  if (!count || count.textContent === text) return;
  inPlace(li, () => {
    count.textContent = text;
    if (link.speed) setText(li.querySelector(".speed"), say("speed", link.speed.toFixed(1)));
    setText(li.querySelector(".others"), say("more", link.sharers - li.querySelectorAll(".by bdi").length));
  });
  count.classList.remove("changed");
  requestAnimationFrame(() => count.classList.add("changed"));
}

// setLeft marks a row whose link is no longer in the view: its count is not kept up.
function setLeft(id, left) {
  const li = row(id);
  if (!li || li.classList.contains("left") === left) return;
  li.classList.toggle("left", left);
  li.querySelector(".gone")?.remove();
  if (left) li.append(element("span", say("left"), "gone"));
}

function showWaiting() {
  if (fresh.size === 0) {
    waiting.replaceChildren();
    return;
  }
  const text = say("new", fresh.size);
  let button = waiting.querySelector("button");
  if (!button) {
    button = element("button", "");
    button.type = "button";
    button.addEventListener("click", showOnRequest);
    waiting.append(button);
  }
  setText(button, text);
  if (Date.now() - announced >= announceEvery) {
    announced = Date.now();
    setText(said, text);
  }
}

// showNew replaces the list by the current one.
async function showNew() {
  try {
    const response = await fetch(location.href);
    if (!response.ok) throw new Error(response.status);
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    for (const id of ["list", "subtitle"]) document.getElementById(id).replaceChildren(...document.adoptNode(page.getElementById(id)).childNodes);
    for (const li of rows()) fresh.delete(li.dataset.id);
    showWaiting();
    updateTimes();
    return true;
  } catch {
    setOffline();
    return false;
  }
}

// showOnRequest does so for a reader, who then is at the first link.
async function showOnRequest() {
  if (!await showNew()) return;
  scrollTo({ top: 0 });
  if (document.activeElement === body) titleOf(rows()[0])?.focus({ preventScroll: true });
}

// fillEmpty shows links as soon as there are some, and what is happening until then:
// nothing can move.
const isEmpty = () => list.querySelector(".empty") !== null;
function fillEmpty() {
  if (!document.hidden && !offline && isEmpty()) showNew();
}

function follow(address) {
  said.setAttribute("role", "status");
  waiting.after(said);
  document.getElementById("reload").hidden = true;
  let timer;
  let events;
  const on = (kind, handle) => events.addEventListener(kind, (e) => {
    const data = JSON.parse(e.data);
    offline = false;
    if (data.at) updated(data.at);
    handle(data);
    if (fresh.size && isEmpty()) fillEmpty();
    else showWaiting();
    updateTimes();
  });
  const connect = () => {
    clearTimeout(timer);
    events?.close();
    if (document.hidden) return;
    events = new EventSource(address);
    on("snapshot", ({ links }) => {
      const ids = new Set(links.map((link) => String(link.id)));
      fresh.clear();
      for (const link of links) row(link.id) ? setCount(link) : fresh.add(String(link.id));
      for (const li of rows()) setLeft(li.dataset.id, !ids.has(li.dataset.id));
    });
    on("change", ({ counts = [], entered = [], left = [] }) => {
      counts.forEach(setCount);
      for (const link of entered) {
        if (row(link.id)) {
          setLeft(link.id, false);
          setCount(link);
        } else fresh.add(String(link.id));
      }
      for (const id of left) fresh.delete(String(id)) || setLeft(id, true);
    });
    on("state", showState);
    events.addEventListener("error", () => {
      setOffline();
      if (events.readyState === EventSource.CLOSED) timer = setTimeout(connect, 5000 + 5000 * Math.random()); // refused: the browser does not try again
    });
  };
  document.addEventListener("visibilitychange", connect);
  addEventListener("online", connect);
  addEventListener("pagehide", () => events?.close());
  addEventListener("pageshow", (e) => e.persisted && connect());
  connect();
  setInterval(fillEmpty, emptyEvery);
}

const titleOf = (li) => li?.querySelector("h2 a");

function move(by) {
  const all = rows();
  const at = all.findIndex((li) => li.contains(document.activeElement));
  const to = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + by, 0), all.length - 1)];
  titleOf(to)?.focus();
  to?.scrollIntoView({ block: "nearest" });
}

const keysOff = "weir-keys-off"; // in the browser's storage, if the reader turned the keys off
const keysOn = () => { try { return !localStorage.getItem(keysOff); } catch { return true; } };

function help() {
  const dialog = document.createElement("dialog");
  const keys = element("dl", "");
  for (const [key, text] of [["j", "key_j"], ["k", "key_k"], ["o", "key_o"], ["n", "key_n"], ["/", "key_search"], ["?", "key_help"]]) {
    const term = document.createElement("dt");
    term.append(element("kbd", key));
    keys.append(term, element("dd", say(text)));
  }
  const use = element("label", "");
  const box = Object.assign(document.createElement("input"), { type: "checkbox", checked: keysOn() });
  box.addEventListener("change", () => { try { box.checked ? localStorage.removeItem(keysOff) : localStorage.setItem(keysOff, "1"); } catch { /* no storage: they stay on */ } });
  use.append(box, say("keys_on"));
  const close = element("button", say("close"));
  close.addEventListener("click", () => dialog.close());
  const heading = element("h2", say("keys"));
  heading.id = "keys-heading";
  dialog.setAttribute("aria-labelledby", heading.id);
  dialog.append(heading, keys, use, close);
  dialog.addEventListener("close", () => dialog.remove());
  body.append(dialog);
  dialog.showModal();
}

function key(e) {
  if (e.ctrlKey || e.altKey || e.metaKey || e.target.closest("input, select, textarea, dialog, [contenteditable]")) return;
  const actions = { j: () => move(1), k: () => move(-1), o: () => rows().some((li) => li.contains(document.activeElement)) && titleOf(document.activeElement.closest(".link")).click(), n: () => fresh.size && showOnRequest(), "/": () => document.getElementById("search").focus(), "?": help };
  if (!Object.hasOwn(actions, e.key) || !keysOn() && e.key !== "?") return;
  e.preventDefault();
  actions[e.key]();
}

if (list) {
  document.addEventListener("keydown", key);
  document.getElementById("keys-hint").hidden = false;
}
// After the pictures: the connection stays open.
if (body.dataset.stream) addEventListener("load", () => follow(body.dataset.stream));
setInterval(() => document.hidden || updateTimes(), 1000);
updateTimes();
