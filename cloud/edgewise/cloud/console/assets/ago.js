// Times as people read them: "3 min ago", with the whole time on hover. Counted by this service's clock, not the browser's.
const meta = document.querySelector("meta[name=edgewise-now]");
const skew = meta ? Number(meta.content) - Date.now() / 1000 : 0;
export const now = () => Date.now() / 1000 + skew;

const STEPS = [[90, 1, "s"], [5400, 60, "min"], [129600, 3600, "h"], [Infinity, 86400, "d"]];

export function ago(at, moment) {
  const gone = moment - at, far = Math.abs(gone);
  if (far < 3) return "now";
  const [, unit, word] = STEPS.find(([below]) => far < below);
  const text = `${Math.round(far / unit)} ${word}`;
  return gone >= 0 ? `${text} ago` : `in ${text}`;
}

export const whole = (at) => new Date(at * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
export const machine = (at) => new Date(at * 1000).toISOString();
