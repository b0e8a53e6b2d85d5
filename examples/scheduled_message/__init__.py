"""Send a message at a set time; edit, move or withdraw it before."""
