"""Engine processes of models that answer at once: they read an input whole and give one result, or one in parts."""
