// The dashboard works without this script. It adds live updates, ages that advance, and the theme switch.
"use strict";

const main = document.getElementById("main");
/** Milliseconds that the clock of this browser is ahead of that of the server. */
const ahead = Date.now() - Number(document.body.dataset.now);

// -- ages ------------------------------------------------------------------------------------------------

function ageText(ms) {
  const away = ms - (Date.now() - ahead);
  const seconds = Math.floor(Math.abs(away) / 1000);
  if (seconds < 1) return "now";
  const text = durationText(seconds);
  return away > 0 ? `in ${text}` : `${text} ago`;
}

function durationText(seconds) {
  for (const [unit, length, below, step] of [["d", 86400, "h", 3600], ["h", 3600, "min", 60], ["min", 60, "s", 1]]) {
    if (seconds >= length) {
      const rest = Math.floor((seconds % length) / step);
      return `${Math.floor(seconds / length).toLocaleString("en")} ${unit}${rest ? ` ${rest} ${below}` : ""}`;
    }
  }
  return `${seconds} s`;
}

function updateAges() {
  for (const time of document.querySelectorAll("time[data-age]")) {
    const text = ageText(Number(time.dataset.age));
    if (time.textContent !== text) time.textContent = text;
  }
}

// -- changes of the page ---------------------------------------------------------------------------------

/** Attributes that the reader changes: an open detail, a typed value, a checked box. */
const OWN = new Set(["open", "value", "checked"]);

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.id || node.dataset.key || "" : "";
}

/** Makes `old` equal to `fresh`, and keeps focus, open details and typed text. */
function update(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  // A value that the reader has not changed follows the storage.
  const isUntouched = old.type === "hidden" || (old !== document.activeElement && old.value === old.defaultValue);
  const isOwn = (name) => OWN.has(name) && (name !== "value" || !isUntouched);
  for (const { name, value } of fresh.attributes) {
    if (!isOwn(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    if (!isOwn(name) && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  updateChildren(old, fresh);
}

function updateChildren(parent, fresh) {
  const keyed = new Map([...parent.children].map((child) => [keyOf(child), child]));
  keyed.delete("");
  let next = parent.firstChild;
  for (const child of [...fresh.childNodes]) {
    const key = keyOf(child);
    let match = key ? keyed.get(key) : null;
    if (!key && next && !keyOf(next) && next.nodeName === child.nodeName) match = next;
    if (match && match.nodeName === child.nodeName) {
      keyed.delete(key);
      if (match === next) next = next.nextSibling;
      else parent.insertBefore(match, next);
      update(match, child);
    } else {
      parent.insertBefore(document.importNode(child, true), next);
    }
  }
  while (next) {
    const rest = next.nextSibling;
    next.remove();
    next = rest;
  }
}

function showPage(html) {
  const holder = document.createElement("template");
  holder.innerHTML = html;
  updateChildren(main, holder.content);
  updateAges();
}

// -- live ------------------------------------------------------------------------------------------------

const liveButton = document.getElementById("live");
const liveText = document.getElementById("live-text");
const down = document.getElementById("down");
let stream = null;
let isPaused = false;

function showState(state) {
  liveButton.dataset.state = state;
  liveText.textContent = state;
  liveButton.setAttribute("aria-pressed", String(!isPaused));
}

function showDown(message) {
  document.getElementById("down-text").textContent = message;
  down.hidden = !message;
}

function connect() {
  if (stream || isPaused || document.hidden) return;
  showState("connecting");
  const opened = new EventSource(main.dataset.live);
  stream = opened;
  opened.addEventListener("page", (event) => {
    showDown("");
    showState("live");
    showPage(event.data);
  });
  opened.addEventListener("down", (event) => {
    showDown(event.data);
    showState("waiting");
  });
  opened.onerror = () => {
    showState("offline");
    if (opened.readyState !== EventSource.CLOSED) return;
    // The server refused the stream, so the browser does not try again by itself.
    disconnect();
    setTimeout(connect, 10000);
  };
}

function disconnect() {
  if (stream) stream.close();
  stream = null;
}

if (liveButton && main.dataset.live) {
  liveButton.title = "Pause or continue the live updates";
  liveButton.addEventListener("click", () => {
    isPaused = !isPaused;
    if (isPaused) disconnect();
    showState("paused");
    connect();
  });
  document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
  window.addEventListener("pagehide", disconnect);
  connect();
}

// -- retries of many jobs --------------------------------------------------------------------------------

let isRetrying = false;

// The reader's click begins a retry, and each step goes to the address of the form that was clicked. No page
// submits anything when it loads, whatever forms it has.
main.addEventListener("submit", async (event) => {
  if (!event.target.matches("form.steps")) return;
  event.preventDefault();
  if (isRetrying) return;
  isRetrying = true;
  try {
    const address = event.target.action;
    for (let form = event.target; form; form = main.querySelector("form.steps")) {
      const answer = await fetch(address, { method: "POST", body: new URLSearchParams(new FormData(form)) });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      main.replaceChildren(...(page.getElementById("main") ?? page.body).childNodes);
    }
  } finally {
    // After a step without an answer, its button continues the retry.
    isRetrying = false;
  }
});

// -- controls --------------------------------------------------------------------------------------------

main.addEventListener("change", (event) => {
  if (event.target.id !== "all") return;
  for (const box of main.querySelectorAll('input[name="job"]')) box.checked = event.target.checked;
});

const themeButton = document.getElementById("theme");
themeButton.addEventListener("click", () => {
  const root = document.documentElement;
  const isDark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : window.matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  try {
    localStorage.setItem("dibs-theme", root.dataset.theme);
  } catch {
    // Storage is blocked in this browser: the choice lasts for this page.
  }
});

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, textarea, select");
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    document.getElementById("search").focus();
  }
});

// The answer to a write stands in the address. Without it, a reload does not show the answer again.
const address = new URL(location.href);
if (address.searchParams.has("did")) {
  address.searchParams.delete("did");
  history.replaceState(null, "", address);
}

updateAges();
setInterval(updateAges, 1000);
