"""The engine process of models that answer in text and in speech: three stages in turns on one device."""
