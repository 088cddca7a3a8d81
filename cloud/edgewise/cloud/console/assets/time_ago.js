import { ago, machine, now, whole } from "/console/assets/ago.js";
export default {
  template: `<time :datetime="machine" :title="whole">{{ text }}</time>`,
  props: { at: Number },
  data: () => ({ moment: now() }),
  computed: {
    text() { return ago(this.at, this.moment); },
    whole() { return whole(this.at); },
    machine() { return machine(this.at); },
  },
  mounted() { this.ticker = setInterval(() => { this.moment = now(); }, 5000); },
  updated() { this.moment = Math.max(this.moment, this.at); },
  unmounted() { clearInterval(this.ticker); },
};
