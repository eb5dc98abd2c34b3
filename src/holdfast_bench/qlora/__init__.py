"""QLoRA on one host and on several: throughput, what synchronizing costs, and the bill."""
