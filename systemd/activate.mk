# After `make install` on a running host: make the system take notice.
activate:
	systemd-sysusers
	journalctl --update-catalog
	systemctl daemon-reload
	busctl call org.freedesktop.DBus / org.freedesktop.DBus ReloadConfig
