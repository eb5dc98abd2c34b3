"""Memory on the devices of workers: readable by others, and outliving its worker."""
