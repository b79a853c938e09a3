"""A local page that follows a training, running or finished: shares and loss as they change."""
