"""One step in the words of other packages: ``pld`` for dp-accounting, ``prv`` for prv-accountant."""
