"""KV pages between appliances of one network: giving them (`routes`), and taking them (`take`). See docs/kv-handover.md."""
