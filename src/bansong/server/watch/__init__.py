"""The watch list as the server keeps it: entries rechecked on time, closures notified, lists served from memory.

``scheduler`` checks what is due and holds rendered lists, ``notifier`` delivers notifications.
"""
