"""The fleet's web console: pages over `edgewise.cloud.fleet.services`, served by the fleet service itself (docs/console.md)."""
