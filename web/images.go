package web

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// images turns stored images into URLs on one host; its zero value shows none.
type images struct {
	base   string // with {did} and {cid}
	origin string // scheme and host, for the page's policy
}

// hostSyntax keeps a host from adding words to the policy, which knows names and
// IPv4 addresses only.
var hostSyntax = regexp.MustCompile(`^[A-Za-z0-9.-]+(:[0-9]+)?$`)

func parseImages(base string) (images, error) {
	if base == "" {
		return images{}, nil
	}
	u, err := url.Parse(base)
	if err == nil && u.User != nil {
		base = u.Redacted()
	}
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || !hostSyntax.MatchString(u.Host) || u.User != nil {
		return images{}, fmt.Errorf("the image base %q is no http or https URL on a host name or an IPv4 address: set one like https://cdn.example/{did}/{cid}, or nothing for no images", base)
	}
	if strings.Count(base, "{did}") != 1 || strings.Count(base, "{cid}") != 1 {
		return images{}, fmt.Errorf("the image base %q needs {did} and {cid}, each once: set one like https://cdn.example/{did}/{cid}", base)
	}
	return images{base: base, origin: u.Scheme + "://" + u.Host}, nil
}

// source is the origin as a further word of the policy's img-src.
func (i images) source() string {
	if i.origin == "" {
		return ""
	}
	return " " + i.origin
}

// url is where a stored image, blob:<did>/<cid>, is shown from; "" where there
// is none, or where what is stored is something else.
func (i images) url(stored string) string {
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
