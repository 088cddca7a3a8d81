// A table of one page of rows that the server chose and sorted. A column's `kind` says how its cells look (parts.py: Column).
import { ago, machine, now, whole } from "/console/assets/ago.js";
export default {
  template: `
    <div class="table-box" tabindex="0" role="group" :aria-label="label">
      <table class="data" :class="{ sorts: columns.some((c) => c.sort) }">
        <caption class="visually-hidden">{{ label }}</caption>
        <thead><tr>
          <th v-if="selectable" class="check" scope="col">
            <input type="checkbox" :checked="all" :indeterminate.prop="some && !all" aria-label="Select all rows of this page" @change="pickAll">
          </th>
          <th v-for="c in columns" :key="c.key" scope="col" :class="[c.kind === 'number' || c.kind === 'meter' ? 'num' : '', c.narrow ? '' : 'narrow-hide', c.sort ? 'sort' : '']"
              :aria-sort="sorted(c)">
            <button v-if="c.sort" type="button" @click="$emit('sort', next(c))">{{ c.label
              }}<span class="icon" aria-hidden="true" v-if="sorted(c)">{{ sorted(c) === 'ascending' ? 'arrow_upward' : 'arrow_downward' }}</span></button>
            <template v-else-if="c.kind === 'actions'"><span class="visually-hidden">{{ c.label }}</span></template>
            <template v-else>{{ c.label }}</template>
          </th>
        </tr></thead>
        <tbody>
          <tr v-for="r in rows" :key="r.id" :class="{ picked: picks.has(r.id) }">
            <td v-if="selectable" class="check"><input type="checkbox" :checked="picks.has(r.id)" :aria-label="'Select ' + (r.name || r.id)" @change="pick(r.id)"></td>
            <td v-for="c in columns" :key="c.key" :class="cellClass(c, r[c.key])" :data-label="named(c)" :title="c.clip ? tip(r[c.key]) : undefined">
              <template v-if="none(r[c.key])"><span class="muted">&ndash;</span></template>
              <template v-else-if="c.kind === 'link'"><a :href="r[c.key].href">{{ r[c.key].text }}</a><span v-if="r[c.key].sub" class="sub" :title="r[c.key].sub">{{ r[c.key].sub }}</span></template>
              <template v-else-if="c.kind === 'state'"><span class="state" :class="'tone-' + r[c.key].tone"><span class="icon" aria-hidden="true">{{ r[c.key].icon }}</span>{{ r[c.key].word }}</span><span v-if="r[c.key].note" class="sub" :title="r[c.key].note">{{ r[c.key].note }}</span></template>
              <template v-else-if="c.kind === 'time'"><time :datetime="machine(r[c.key])" :title="whole(r[c.key])">{{ ago(r[c.key], moment) }}</time></template>
              <template v-else-if="c.kind === 'chips'"><span class="chips"><span class="chip" v-for="t in r[c.key]" :key="t">{{ t }}</span></span></template>
              <template v-else-if="c.kind === 'meter'"><span class="meter"><i aria-hidden="true"><i :class="'bar-' + r[c.key].tone" :style="{ width: 100 * Math.min(1, r[c.key].share) + '%' }"></i></i>{{ r[c.key].text }}</span></template>
              <template v-else-if="c.kind === 'actions'"><span class="row-actions"><button v-for="a in r[c.key]" :key="a.action" type="button" class="button little" :class="a.tone" :aria-label="a.label + ': ' + (r.name || r.id)" @click="$emit('action', { id: r.id, action: a.action })">{{ a.label }}</button></span></template>
              <template v-else>{{ r[c.key] }}</template>
            </td>
          </tr>
        </tbody>
      </table>
    </div>`,
  props: { label: String, columns: Array, rows: Array, sort: String, selectable: Boolean, picked: Array },
  emits: ["sort", "pick", "action"],
  data: () => ({ moment: now() }),
  computed: {
    picks() { return new Set(this.picked || []); },
    some() { return this.rows.some((r) => this.picks.has(r.id)); },
    all() { return this.rows.length > 0 && this.rows.every((r) => this.picks.has(r.id)); },
  },
  methods: {
    ago, machine, whole,
    sorted(c) {
      if (!c.sort) return undefined;
      if (this.sort === c.sort) return "ascending";
      return this.sort === "-" + c.sort ? "descending" : undefined;
    },
    next(c) { return this.sort === c.sort ? "-" + c.sort : c.sort; },
    named(c) { return ["link", "state", "actions"].includes(c.kind) ? undefined : c.label; },
    none: (value) => value === null || value === undefined || value === "" || (Array.isArray(value) && !value.length),
    cellClass(c, value) {
      return ["kind-" + c.kind, this.none(value) ? "none" : "", c.kind === "number" || c.kind === "meter" ? "num" : "", c.kind === "mono" ? "mono" : "", c.wrap ? "wrap" : "", c.clip ? "clip" : "", c.narrow ? "" : "narrow-hide"];
    },
    tip(value) { return Array.isArray(value) ? value.join(", ") : value; },
    pick(id) {
      const picks = new Set(this.picks);
      if (!picks.delete(id)) picks.add(id);
      this.$emit("pick", [...picks]);
    },
    pickAll(event) {
      const picks = new Set(this.picks);
      for (const r of this.rows) event.target.checked ? picks.add(r.id) : picks.delete(r.id);
      this.$emit("pick", [...picks]);
    },
  },
  watch: { rows() { this.moment = now(); } },
  mounted() { this.ticker = setInterval(() => { this.moment = now(); }, 5000); },
  unmounted() { clearInterval(this.ticker); },
};
