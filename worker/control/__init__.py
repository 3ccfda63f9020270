"""Commands of the control topic and the clock of an idle partition."""
