"""Parts of the controller role: publication of metadata, and changes of the config store."""
