"""Parts of the controller role: changes of the config store, and the control API's backend."""
