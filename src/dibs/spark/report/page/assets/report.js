// Adds to the static page: show one queue at a time, show the values under the pointer, and switch between
// the light and the dark theme.
"use strict";

const series = JSON.parse(document.getElementById("series").textContent);
const tip = document.getElementById("tip");

// Sweden writes 2026-11-20 13:12.
const timeZone = document.documentElement.dataset.zone;
const times = new Intl.DateTimeFormat("sv-SE", { timeZone, dateStyle: "short", timeStyle: "short" });

const sections = [...document.querySelectorAll("section[data-queue]")];

function choose(chosen) {
  for (const section of sections) section.hidden = section !== chosen;
  for (const link of document.querySelectorAll(".overview a")) {
    link.toggleAttribute("aria-current", chosen !== undefined && link.hash === `#${chosen.id}`);
  }
}

// A link of the overview names a queue, and a link of a table of ids names the runs of an id.
function follow() {
  const target = document.getElementById(location.hash.slice(1));
  if (target?.id === "overview") target.scrollIntoView();
  const section = target?.closest("section[data-queue]");
  if (!section) return;
  choose(section);
  for (let fold = target; (fold = fold?.closest("details")); fold = fold.parentElement) fold.open = true;
  target.scrollIntoView();
}

function isDark() {
  const theme = document.documentElement.dataset.theme;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function formatValue(value, unit) {
  if (value === null || value === undefined) return "none";
  if (unit !== "ms") return value.toLocaleString("en", { maximumFractionDigits: 1 });
  if (value < 1000) return `${Math.round(value)} ms`;
  if (value < 120000) return `${(value / 1000).toFixed(1)} s`;
  return value < 7200000 ? `${(value / 60000).toFixed(1)} min` : `${(value / 3600000).toFixed(1)} h`;
}

function show(event, svg) {
  const { unit } = svg.dataset;
  const data = series[svg.dataset.queue][svg.dataset.range];
  const box = svg.getBoundingClientRect();
  const part = (event.clientX - box.left) / box.width;
  const x = part * svg.viewBox.baseVal.width;
  if (part < 0 || part >= 1) return hide(svg);
  const index = Math.floor(part * data.at.length);
  const cursor = svg.querySelector(".cursor");
  cursor.setAttribute("x1", x);
  cursor.setAttribute("x2", x);
  cursor.style.visibility = "visible";
  tip.replaceChildren();
  const when = document.createElement("b");
  when.textContent = `${times.format(data.at[index])} ${timeZone}`;
  tip.append(when);
  for (const one of JSON.parse(svg.dataset.lines)) {
    const line = document.createElement("div");
    const colour = document.createElement("i");
    colour.className = one.colour;
    const total = one.names.reduce((sum, name) => sum + (data[name][index] ?? 0), 0);
    const isMissing = one.names.every((name) => data[name][index] === null);
    line.append(colour, `${one.label} ${formatValue(isMissing ? null : total, unit)}`);
    tip.append(line);
  }
  tip.style.display = "block";
  const over = event.clientX + tip.offsetWidth + 24 > innerWidth;
  tip.style.left = `${event.clientX + (over ? -tip.offsetWidth - 12 : 12)}px`;
  tip.style.top = `${Math.max(4, event.clientY - tip.offsetHeight - 12)}px`;
}

function hide(svg) {
  tip.style.display = "none";
  svg.querySelector(".cursor").style.visibility = "hidden";
}

for (const svg of document.querySelectorAll("svg[data-queue]")) {
  svg.addEventListener("pointermove", (event) => show(event, svg));
  svg.addEventListener("pointerleave", () => hide(svg));
}
document.getElementById("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
});
// In the frame of a notebook (srcdoc) a link to a fragment would load the notebook into the frame.
for (const link of document.querySelectorAll('a[href^="#"]')) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    if (location.hash === link.hash) follow();
    else location.hash = link.hash;
  });
}
addEventListener("hashchange", follow);
choose(sections[0]);
follow();
document.body.dataset.ready = "yes";
