package link

import "strings"

// parameter is one part of a query.
type parameter struct {
	name string // in lower case
	text string // as it is written: "name=value" or "name"
}

// parameters returns the parameters of a query without tracking parameters, in order.
func parameters(query string) []parameter {
	var all []parameter
	for text := range strings.SplitSeq(query, "&") {
		if text == "" {
			continue
		}
		p := newParameter(escape(text))
		if !isTracking(p) {
			all = append(all, p)
		}
	}
	return all
}

func newParameter(text string) parameter {
	name, _, _ := strings.Cut(text, "=")
	return parameter{name: strings.ToLower(name), text: text}
}

func (p parameter) value() string {
	_, value, _ := strings.Cut(p.text, "=")
	return value
}

// isTracking reports whether a parameter only records where the reader came from.
// Names that have a meaning on some site ("ref", "source", "id", "token") do not
// qualify.
func isTracking(p parameter) bool {
	// Pages with broken escaping write "&amp;utm_source=".
	name := strings.TrimPrefix(p.name, "amp;")
	if strings.HasPrefix(name, "utm_") {
		return true
	}
	switch name {
	case "fbclid", "mibextid", "fb_action_ids", "fb_action_types", "fb_source", // Facebook
		"gclid", "gclsrc", "dclid", "gbraid", "wbraid", "gad_source", "gad_campaignid", "srsltid", "_gl", "_ga", // Google
		"msclkid", "yclid", "ymclid", "_openstat", "twclid", "ttclid", "li_fat_id", "epik", "rdt_cid", "sccid", "s_kwcid", // other advertisers
		"igshid", "igsh", // Instagram
		"mc_cid", "mc_eid", "_hsenc", "_hsmi", "__hssc", "__hstc", "__hsfp", "hsctatracking", "mkt_tok", // newsletters
		"vero_id", "vero_conv", "oly_enc_id", "oly_anon_id", "ck_subscriber_id", "_ke", "_kx", "dm_i", "ml_subscriber", "ml_subscriber_hash",
		"spm", "cmpid", "wt.mc_id", "wt.mc_ev", "wt.srch", "wt.tsrc", "at_medium", "at_campaign", "ns_campaign", "ns_mchannel", "ns_source",
		"ref_src", "ref_url", "guccounter", "guce_referrer", "guce_referrer_sig", "__twitter_impression":
		return true
	case "amp":
		// The value separates the AMP switch from, for example, a shop's amplifier.
		switch p.value() {
		case "", "1", "true":
			return true
		}
	case "outputtype":
		return strings.EqualFold(p.value(), "amp")
	}
	return false
}

// isTrackingOn reports whether a parameter only records where the reader came from
// on the site of host. It includes gift codes of paywalled sites: each giver has
// another code for the same page.
func isTrackingOn(host, name string) bool {
	switch {
	case isUnder(host, "youtube.com"):
		switch name {
		case "si", "feature", "t", "pp", "ab_channel", "app", "time_continue":
			return true
		}
	case isUnder(host, "spotify.com"):
		return name == "si"
	case isUnder(host, "x.com"):
		return name == "t" || name == "s"
	case isUnder(host, "tiktok.com"):
		switch name {
		case "_t", "_r", "is_from_webapp", "sender_device", "web_id":
			return true
		}
	case isUnder(host, "reddit.com"):
		return name == "share_id" || name == "rdt"
	case isUnder(host, "nytimes.com"):
		switch name {
		case "unlocked_article_code", "smid", "smtyp", "referringsource":
			return true
		}
	case isUnder(host, "theatlantic.com"):
		return name == "gift"
	case isUnder(host, "washingtonpost.com"):
		switch name {
		case "pwapi_token", "itid", "wpisrc", "wpmk":
			return true
		}
	case isUnder(host, "wsj.com"):
		return name == "st" || name == "reflink"
	case isUnder(host, "bloomberg.com"):
		return name == "accesstoken" || name == "leadsource"
	}
	return false
}
