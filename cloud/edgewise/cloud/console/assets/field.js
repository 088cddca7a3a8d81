// A labelled input: text, search, password, number, area, code, select or check. Fault and hint are read out with it.
export default {
  template: `
    <div class="field" :class="{ check: kind === 'check' }">
      <input v-if="kind === 'check'" :id="own" type="checkbox" :checked="modelValue" :disabled="off" :aria-describedby="notes" @change="say($event.target.checked)">
      <label :for="own" :class="{ 'visually-hidden': bare }">{{ label }}</label>
      <select v-if="kind === 'select'" class="input" :id="own" :value="modelValue" :disabled="off" :aria-describedby="notes" @change="say($event.target.value)">
        <option v-for="o in options" :key="o.value" :value="o.value">{{ o.label }}</option>
      </select>
      <textarea v-else-if="kind === 'area' || kind === 'code'" ref="box" class="input" :class="{ code: kind === 'code' }" :id="own" :rows="rows" :value="modelValue" :disabled="off"
        :placeholder="placeholder" :spellcheck="kind !== 'code'" :aria-invalid="!!fault" :aria-describedby="notes" @input="say($event.target.value)" @keydown="key"></textarea>
      <input v-else-if="kind !== 'check'" ref="box" :id="own" :type="kind" :value="modelValue" :disabled="off" :placeholder="placeholder" autocomplete="off"
        :aria-invalid="!!fault" :aria-describedby="notes" @input="say($event.target.value)" @keydown="key">
      <span v-if="fault" class="fault" :id="own + '-f'" role="alert">{{ fault }}</span>
      <span v-if="hint" class="hint" :id="own + '-h'">{{ hint }}</span>
    </div>`,
  props: { modelValue: null, kind: String, label: String, hint: String, fault: String, placeholder: String, options: Array, rows: Number, off: Boolean, bare: Boolean, enters: Boolean },
  emits: ["update:modelValue", "enter"],
  computed: {
    own() { return this.$attrs.id + "-input"; },
    notes() { return [this.fault && this.own + "-f", this.hint && this.own + "-h"].filter(Boolean).join(" ") || undefined; },
  },
  methods: {
    say(value) { this.$emit("update:modelValue", value); },
    key(event) {
      if (event.key !== "Enter" || event.isComposing || event.shiftKey) return;
      if (this.kind === "code" || (this.kind === "area" && !this.enters)) return;
      event.preventDefault();
      this.$emit("enter");
    },
  },
};
