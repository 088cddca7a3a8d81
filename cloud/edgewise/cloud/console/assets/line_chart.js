// A small chart of one value over time: the line of its mean, a band from least to most, and the value under the pointer.
import { whole } from "/console/assets/ago.js";
const W = 400, H = 120, LEFT = 42, BOTTOM = 18, TOP = 8;
export default {
  template: `
    <figure class="chart panel">
      <figcaption>{{ label }}<output>{{ shown }}</output></figcaption>
      <svg :viewBox="'0 0 ' + width + ' 120'" role="img" :aria-label="summary" @pointermove="move" @pointerleave="under = null">
        <g v-for="t in ticks" :key="t.y"><line class="grid-line" :x1="42" :x2="width" :y1="t.y" :y2="t.y"></line><text x="36" :y="t.y + 4" text-anchor="end">{{ t.text }}</text></g>
        <text x="42" y="118">{{ first }}</text><text :x="width" y="118" text-anchor="end">{{ last }}</text>
        <path class="band" :d="band"></path><path class="curve" :d="curve"></path>
        <template v-if="under"><line class="cursor" :x1="under.x" :x2="under.x" y1="8" y2="102"></line><circle class="dot" :cx="under.x" :cy="under.y" r="3"></circle></template>
        <circle v-if="newest" class="dot" :cx="x(newest[0])" :cy="y(newest[1])" r="2.5"></circle>
        <text v-if="!points.length" :x="width / 2" y="62" text-anchor="middle">No sample in this span yet</text>
      </svg>
      <div class="small muted">{{ under ? under.text : foot }}</div>
    </figure>`,
  props: { label: String, unit: String, digits: Number, points: Array, since: Number, until: Number, floor: Number },
  data: () => ({ under: null, width: W }),
  computed: {
    span() {
      let low = Infinity, high = -Infinity;
      for (const p of this.points) { low = Math.min(low, p[2]); high = Math.max(high, p[3]); }
      if (!isFinite(low)) return [0, 1];
      if (this.floor !== null && this.floor !== undefined) low = Math.min(low, this.floor);
      const room = (high - low || Math.abs(high) || 1) * 0.08;
      return [low === this.floor ? low : low - room, high + room];
    },
    ticks() {
      const [low, high] = this.span, rough = (high - low) / 3, power = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough), ticks = [];
      for (let v = Math.ceil(low / step) * step; v <= high; v += step) ticks.push({ y: this.y(v), text: this.short(v, step) });
      return ticks;
    },
    curve() { return this.points.map((p, i) => `${i ? "L" : "M"}${this.x(p[0]).toFixed(1)} ${this.y(p[1]).toFixed(1)}`).join(""); },
    band() {
      if (this.points.length < 2) return "";
      const up = this.points.map((p, i) => `${i ? "L" : "M"}${this.x(p[0]).toFixed(1)} ${this.y(p[3]).toFixed(1)}`);
      const down = [...this.points].reverse().map((p) => `L${this.x(p[0]).toFixed(1)} ${this.y(p[2]).toFixed(1)}`);
      return up.join("") + down.join("") + "Z";
    },
    newest() { return this.points.length ? this.points[this.points.length - 1] : null; },
    shown() { return this.newest ? this.value(this.newest[1]) : "\u2013"; },
    foot() {
      if (!this.points.length) return "\u00a0";
      let low = Infinity, high = -Infinity;
      for (const p of this.points) { low = Math.min(low, p[2]); high = Math.max(high, p[3]); }
      return `least ${this.value(low)}, most ${this.value(high)}`;
    },
    summary() { return `${this.label}: now ${this.shown}; ${this.foot}`; },
    first() { return this.clock(this.since); },
    last() { return this.clock(this.until); },
  },
  methods: {
    x(at) { return LEFT + ((at - this.since) / (this.until - this.since || 1)) * (this.width - LEFT); },
    y(v) { const [low, high] = this.span; return TOP + (1 - (v - low) / (high - low)) * (H - TOP - BOTTOM); },
    value(v) { return `${v.toLocaleString(undefined, { minimumFractionDigits: this.digits, maximumFractionDigits: this.digits })}${this.unit ? "\u00a0" + this.unit : ""}`; },
    short(v, step) { return Math.abs(v) >= 10000 ? Intl.NumberFormat(undefined, { notation: "compact" }).format(v) : v.toFixed(Math.max(0, -Math.floor(Math.log10(step) + 1e-9))); },
    clock(at) { return new Date(at * 1000).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" }); },
    move(event) {
      if (!this.points.length) return;
      const box = event.currentTarget.getBoundingClientRect(), x = ((event.clientX - box.left) / box.width) * this.width;
      const near = this.points.reduce((a, b) => (Math.abs(this.x(b[0]) - x) < Math.abs(this.x(a[0]) - x) ? b : a));
      this.under = { x: this.x(near[0]), y: this.y(near[1]), text: `${this.value(near[1])} at ${whole(near[0])}` };
    },
    fit() { const box = this.$el.querySelector("svg").getBoundingClientRect(); if (box.width) this.width = box.width; },
  },
  mounted() { this.watcher = new ResizeObserver(() => this.fit()); this.watcher.observe(this.$el); this.fit(); },
  unmounted() { this.watcher.disconnect(); },
};
