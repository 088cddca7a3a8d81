"""The fleet's database: the only truth about devices, commands, rollouts, alerts, people and what they did."""
