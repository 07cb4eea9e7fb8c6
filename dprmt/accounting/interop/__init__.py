"""Steps and runs for other packages: ``pld`` and ``dp_event`` for dp-accounting, ``prv`` for prv-accountant."""
