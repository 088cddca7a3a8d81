// Theme, navigation on narrow screens, menus that close, and keys: "/" searches, "g" and a letter goes, "?" explains.
const root = document.documentElement;
const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const acts = {
  theme() { root.dataset.theme = isDark() ? "light" : "dark"; localStorage.setItem("edgewise-theme", root.dataset.theme); },
  nav(button) { button.setAttribute("aria-expanded", String(document.body.classList.toggle("nav-open"))); },
  copy(button) { navigator.clipboard.writeText(button.dataset.text).then(() => { button.textContent = "Copied"; }); },
};
const typing = (el) => el.closest("input, textarea, select, [contenteditable=true]");
let going = 0;
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-act]");
  if (button) acts[button.dataset.act](button);
  for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    for (const menu of document.querySelectorAll("details.menu[open]")) { menu.open = false; menu.querySelector("summary").focus(); }
    document.body.classList.remove("nav-open");
    if (typing(event.target)) event.target.blur();
  }
  if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target) || document.querySelector("[role=dialog]")) return;
  if (Date.now() - going < 1200) {
    const link = document.querySelector(`[data-go="${event.key}"]`);
    going = 0;
    if (link) { event.preventDefault(); link.click(); }
    return;
  }
  if (event.key === "g") going = Date.now();
  else if (event.key === "/") { event.preventDefault(); document.querySelector(".search input")?.focus(); }
  else if (event.key === "t") acts.theme();
  else if (event.key === "?") document.querySelector("[data-help]")?.click();
});
