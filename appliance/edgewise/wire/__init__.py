"""Everything that crosses a link between device, cloud and console; the same messages over HTTP and MQTT."""
