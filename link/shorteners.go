package link

import "strings"

// IsShortener reports whether the links of a host, as Parse returns them, are short
// names of other links. Only their redirects show which. A host whose short links
// contain the target (youtu.be) is not a shortener.
func IsShortener(host string) bool {
	switch bare(strings.ToLower(host)) {
	// Open to everybody.
	case "t.co", "bit.ly", "j.mp", "tinyurl.com", "ow.ly", "ht.ly", "owl.li", "buff.ly", "dlvr.it", "trib.al", "ebx.sh", "zpr.io",
		"lnkd.in", "is.gd", "v.gd", "goo.gl", "maps.app.goo.gl", "photos.app.goo.gl", "share.google", "search.app", "forms.gle", "ift.tt",
		"cutt.ly", "rb.gy", "rebrand.ly", "bl.ink", "t.ly", "shorturl.at", "tiny.cc", "tny.im", "soo.gd", "s.id", "snip.ly", "po.st", "shar.es",
		"flip.it", "dub.sh", "t2m.io", "tr.ee", "hubs.ly", "hubs.li", "hubs.la", "conta.cc", "spr.ly", "bddy.me", "qr.ae", "clck.ru", "vk.cc",
		"wp.me", "fb.me", "fb.watch", "aka.ms", "git.io", "redd.it", "spoti.fi", "spotify.link", "on.soundcloud.com", "apple.co",
		"amzn.to", "amzn.eu", "a.co", "chng.it", "gofund.me", "vm.tiktok.com", "vt.tiktok.com", "pin.it":
		return true
	// Of one newspaper, broadcaster or journal.
	case "nyti.ms", "wapo.st", "cnn.it", "bbc.in", "reut.rs", "bloom.bg", "econ.st", "on.ft.com", "on.wsj.com", "gu.com", "theatln.tc", "politi.co",
		"n.pr", "nbcnews.to", "cbsn.ws", "abcn.ws", "apne.ws", "fxn.ws", "cnb.cx", "hill.cm", "usat.ly", "lat.ms", "huff.to", "nyer.cm",
		"ti.me", "tcrn.ch", "engt.co", "interc.pt", "propub.li", "wrd.cm", "rol.st", "aje.io", "str.sg", "f24.my", "rfi.my", "p.dw.com",
		"sz.de", "spon.de", "lemde.fr", "ind.pn", "mol.im", "go.nature.com", "go.ted.com", "yhoo.it", "pewrsr.ch":
		return true
	}
	return false
}
