package link

// IsShort reports whether a normalised URL is a short name of another link. Only its redirect
// shows which. A short link that contains its target (youtu.be) is none.
func IsShort(url string) bool {
	a, err := parseOne(url)
	return err == nil && a.isShort()
}

func (a *address) isShort() bool {
	return a.port == "" && a.isOneOf(a.rules().short)
}
