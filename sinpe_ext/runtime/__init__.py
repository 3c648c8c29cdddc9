"""What torch has to be asked or told, whatever is computed: who traces, no gradients, constants on a device."""
