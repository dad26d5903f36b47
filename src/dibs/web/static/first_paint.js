// What must be known before the first paint: that scripts run, so that the controls which need them have their
// places at once, and the chosen theme. Without a choice, the style follows the system.
"use strict";
document.documentElement.dataset.script = "on";
try {
  const chosen = localStorage.getItem("dibs-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage is blocked in this browser, so the theme of the system stays.
}
