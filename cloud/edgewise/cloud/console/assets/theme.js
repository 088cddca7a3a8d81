// Before the first paint: the theme that this browser chose, if any; else the system's.
{
  const theme = localStorage.getItem("edgewise-theme");
  if (theme) document.documentElement.dataset.theme = theme;
}
