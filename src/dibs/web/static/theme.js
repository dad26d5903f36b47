// Sets the chosen theme before the first paint. Without a choice, the style follows the system.
"use strict";
try {
  const chosen = localStorage.getItem("dibs-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage is blocked in this browser, so the theme of the system stays.
}
