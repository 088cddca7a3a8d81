"""How the starter picture model is made: collect pictures, train, judge, pack. docs/pictures-model.md has the commands."""
