"""All that speaks to the hosted service: wire shapes, transport, client, its blocking door."""
