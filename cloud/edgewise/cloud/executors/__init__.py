"""Back ends that work jobs off. They hold no truth: the job table does."""
