package web

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// images returns the URLs of stored images on one host. The zero value returns none.
type images struct {
	base   string // with {did} and {cid}
	origin string // scheme and host, for the Content-Security-Policy
}

// hostSyntax allows host names and IPv4 addresses, so that a host cannot add further
// words to the Content-Security-Policy.
var hostSyntax = regexp.MustCompile(`^[A-Za-z0-9.-]+(:[0-9]+)?$`)

// parseImages returns the images of the part that has some.
func parseImages(parts []Part) (images, error) {
	i := slices.IndexFunc(parts, func(p Part) bool { return p.Images != "" })
	if i < 0 {
		return images{}, nil
	}
	base := parts[i].Images
	u, err := url.Parse(base)
	if err == nil && u.User != nil {
		base = u.Redacted()
	}
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || !hostSyntax.MatchString(u.Host) || u.User != nil {
		return images{}, fmt.Errorf("the image base %q is not an http or https URL with a host name or an IPv4 address: "+
			"set one like https://cdn.example/{did}/{cid}, or leave it empty for no images", base)
	}
	if strings.Count(base, "{did}") != 1 || strings.Count(base, "{cid}") != 1 {
		return images{}, fmt.Errorf("the image base %q must contain {did} and {cid} once each: "+
			"set one like https://cdn.example/{did}/{cid}", base)
	}
	return images{base: base, origin: u.Scheme + "://" + u.Host}, nil
}

// source returns the origin as a further word of img-src, or "".
func (i images) source() string {
	if i.origin == "" {
		return ""
	}
	return " " + i.origin
}

// Image returns the URL of a stored image, blob:<did>/<cid>; "" if there is no image or if it has another form.
func (i images) Image(stored string) string {
	rest, ok := strings.CutPrefix(stored, "blob:")
	if !ok || i.base == "" {
		return ""
	}
	did, cid, ok := strings.Cut(rest, "/")
	if !ok {
		return ""
	}
	if _, err := syntax.ParseDID(did); err != nil {
		return ""
	}
	if _, err := syntax.ParseCID(cid); err != nil {
		return ""
	}
	return strings.NewReplacer("{did}", url.PathEscape(did), "{cid}", url.PathEscape(cid)).Replace(i.base)
}
