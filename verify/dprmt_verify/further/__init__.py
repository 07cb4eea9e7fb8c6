"""Laws that a statement may need beside the core, each loaded only then: secret probes, Hutch++, random allocation."""
